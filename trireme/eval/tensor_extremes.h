// How far a tensor is from a reference's, in parts of the reference's largest entry.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <ATen/ATen.h>

#include "trireme/model/model_layout.h"

namespace trireme {

// Extremes of a whole tensor, which may come in parts and on several ranks.
struct Extremes {
  double difference = 0;
  double largest = 0;

  void add(const at::Tensor& ours, const at::Tensor& reference) {
    if (reference.numel() == 0) return;
    const double worst = (ours - reference).abs().max().item<double>();
    difference = std::max(difference, std::isfinite(worst) ? worst : std::numeric_limits<double>::infinity());
    largest = std::max(largest, reference.abs().max().item<double>());
  }
  double error() const {
    if (difference == 0) return 0;
    return largest > 0 ? difference / largest : std::numeric_limits<double>::infinity();
  }
};

// Of the parameters of one unit: a gradient that is zero but for rounding is compared with the largest of its
// unit. `of_unit` has one for each parameter.
inline void compare_vanishing_with_unit(const std::vector<ParameterSpec>& parameters, Extremes* of_unit) {
  double largest = 0;
  for (size_t i = 0; i < parameters.size(); ++i) largest = std::max(largest, of_unit[i].largest);
  for (size_t i = 0; i < parameters.size(); ++i)
    if (parameters[i].gradient_vanishes) of_unit[i].largest = largest;
}

}  // namespace trireme
