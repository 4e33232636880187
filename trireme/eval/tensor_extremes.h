// How far tensors are from a reference's, in parts of the reference's largest entry.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "trireme/comm/agreement.h"
#include "trireme/model/model_layout.h"

namespace trireme {

// Extremes of a whole tensor, which may come in parts and on several ranks.
struct Extremes {
  double difference = 0;
  double largest = 0;

  void add(const at::Tensor& ours, const at::Tensor& reference);
  void add(double ours, double reference);
  double error() const;
};

struct TensorError {
  std::string name;    // "loss", "logits", "grad.model.norm.weight"
  double error = 0;    // largest |ours - reference| / largest |reference|; infinite where ours is not finite
  double largest = 0;  // largest |reference|; of its unit, where the gradient is zero
};

struct ComparedTensor {
  std::string name;
  Extremes extremes = {};
};

// Adds "grad.NAME" of each parameter of a unit, whose flat gradient is `ours`. A gradient that is zero, or
// that is zero but for rounding (of fp64 too), is compared with the largest of its unit.
void compare_gradients(const UnitSpec& unit, const at::Tensor& ours,
                       const std::function<at::Tensor(const ParameterSpec&)>& reference,
                       std::vector<ComparedTensor>& compared);

// By the extremes over all ranks, which have the same tensors; worst first. Collective.
std::vector<TensorError> errors_over_ranks(const std::vector<ComparedTensor>& compared, Agreement& agreement);

}  // namespace trireme
