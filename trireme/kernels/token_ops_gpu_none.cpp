// Stands in for token_ops_gpu.cpp in a build without CUDA: no kernel takes any tensor.
#include "trireme/kernels/token_ops_gpu.h"

namespace trireme::gpu {

std::optional<at::Tensor> rms_norm(const at::Tensor&, const at::Tensor&, double, at::ScalarType, bool) {
  return {};
}
bool rms_norm_backward(const at::Tensor&, const at::Tensor&, const at::Tensor&, double, at::Tensor&,
                       at::Tensor&, bool) {
  return false;
}
std::optional<at::Tensor> layer_norm(const at::Tensor&, const at::Tensor&, const at::Tensor&, double,
                                     at::ScalarType) {
  return {};
}
std::optional<at::Tensor> layer_norm_backward(const at::Tensor&, const at::Tensor&, const at::Tensor&, double,
                                              at::ScalarType, at::Tensor&, at::Tensor&) {
  return {};
}
bool rotate_heads(const at::Tensor&, const RotaryHeads&, const at::Tensor&) {
  return false;
}
bool rotate_heads_backward(const at::Tensor&, const RotaryHeads&, const at::Tensor&, const at::Tensor&,
                           at::Tensor&, at::Tensor&) {
  return false;
}

std::optional<at::Tensor> glu(GluGate, const at::Tensor&) {
  return {};
}
std::optional<at::Tensor> glu_backward(GluGate, const at::Tensor&, const at::Tensor&) {
  return {};
}
bool exact_gelu_backward(const at::Tensor&, const at::Tensor&) {
  return false;
}

bool cross_entropy(const at::Tensor&, const at::Tensor&, const at::Tensor&, std::optional<double>, double) {
  return false;
}

}  // namespace trireme::gpu
