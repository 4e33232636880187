// The token-wise operations in kernels of our own, on the current stream of a CUDA device (token_ops_gpu.cpp;
// a build without CUDA has token_ops_gpu_none.cpp). Each does what token_ops.h says, or returns nothing or
// false, where no kernel takes the tensors: kernels take fp32, bf16 or fp16, one of them for all rows [T,
// ..], vectors of any of the three, and sums in fp32.
#pragma once

#include "trireme/kernels/token_ops.h"

namespace trireme::gpu {

std::optional<at::Tensor> rms_norm(const at::Tensor& x_TM, const at::Tensor& weight, double eps,
                                   at::ScalarType out_dtype, bool adds_one = false);
bool rms_norm_backward(const at::Tensor& dy_TM, const at::Tensor& x_TM, const at::Tensor& weight, double eps,
                       at::Tensor& dx_TM, at::Tensor& dweight, bool adds_one = false);

std::optional<at::Tensor> layer_norm(const at::Tensor& x_TM, const at::Tensor& weight, const at::Tensor& bias,
                                     double eps, at::ScalarType out_dtype);
std::optional<at::Tensor> layer_norm_backward(const at::Tensor& dy_TM, const at::Tensor& x_TM,
                                              const at::Tensor& weight, double eps, at::ScalarType out_dtype,
                                              at::Tensor& dweight, at::Tensor& dbias);

bool rotate_heads(const at::Tensor& from_TND, const RotaryHeads& rotary, const at::Tensor& to_TND);
bool rotate_heads_backward(const at::Tensor& from_TND, const RotaryHeads& rotary,
                           const at::Tensor& before_TND, const at::Tensor& to_TND, at::Tensor& dq_norm,
                           at::Tensor& dk_norm);

std::optional<at::Tensor> glu(GluGate gate, const at::Tensor& gate_up);
std::optional<at::Tensor> glu_backward(GluGate gate, const at::Tensor& dact, const at::Tensor& gate_up);
bool exact_gelu_backward(const at::Tensor& dact, const at::Tensor& x);

bool cross_entropy(const at::Tensor& logits_TV, const at::Tensor& targets, const at::Tensor& loss,
                   std::optional<double> scale, double cap);

}  // namespace trireme::gpu
