// A linear layer's three products, into given memory: y = x W' + b, dx = dy W, and the weight's gradient
// summed in fp32. x, dy, weight and bias have one dtype, and any strides but where a line says otherwise.
#pragma once

#include <ATen/ATen.h>

#include "trireme/kernels/sum_state.h"

namespace trireme {

// x [T, k], weight [n, k], bias [n] or undefined -> out [T, n] of their dtype.
void linear_into(at::Tensor& out_Tn, const at::Tensor& x_Tk, const at::Tensor& weight_nk,
                 const at::Tensor& bias_n);
at::Tensor linear_forward(const at::Tensor& x_Tk, const at::Tensor& weight_nk, const at::Tensor& bias_n);
// dy [T, n] -> dx [T, k], which may have another dtype.
void linear_backward_into(at::Tensor& dx_Tk, const at::Tensor& dy_Tn, const at::Tensor& weight_nk);

// gradient [n, k] fp32, contiguous, += dy' x; where its state is undefined, dy' x is written over it.
// bias_gradient [n] fp32 += column sums of dy (skipped without one). The elements of a row of dy and of x lie
// side by side.
void add_linear_gradient(at::Tensor& gradient_nk, at::Tensor& bias_gradient_n, const at::Tensor& dy_Tn,
                         const at::Tensor& x_Tk, SumState state);

}  // namespace trireme
