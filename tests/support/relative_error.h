// How far a tensor is from its truth.
#pragma once

#include <cmath>

#include <ATen/ATen.h>

namespace trireme::testing {

// max |got - truth| / max |truth|, in fp64; infinite where a difference is not finite.
inline double relative_error(const at::Tensor& got, const at::Tensor& truth) {
  const at::Tensor wide = truth.to(at::kDouble);
  const at::Tensor difference = (got.to(at::kDouble) - wide).abs();
  return difference.isfinite().all().item<bool>()
             ? difference.max().item<double>() / wide.abs().max().item<double>()
             : INFINITY;
}

}  // namespace trireme::testing
