// A convolution over time of each column by itself, with silu behind it (Gated DeltaNet, arXiv 2412.06464):
//
//   pre_t = sum over i in [0, taps) of w[taps - 1 - i] x_{t - i}      y = silu(pre)
//
// of the tokens t - i that are in t's document. Sums are fp32 (fp64 of fp64). Tokens go in blocks that stay
// in a cache (causal_convolution_bytes.h), so that x is read and y written once.
#pragma once

#include <ATen/ATen.h>

namespace trireme {

// x [B, S, C] and weight [C, taps], of any float dtypes and strides -> y [B, S, C] of x's dtype.
// document_begins [B, S]: document_begins.h, on x's device; or undefined.
at::Tensor causal_convolution(const at::Tensor& x_BSC, const at::Tensor& weight_CW,
                              const at::Tensor& document_begins_BS);
// dy [B, S, C] -> dx [B, S, C] (written), each of any float dtype; added to dweight [C, taps] of the sums'
// dtype.
void causal_convolution_backward(const at::Tensor& dy_BSC, const at::Tensor& x_BSC,
                                 const at::Tensor& weight_CW, const at::Tensor& document_begins_BS,
                                 const at::Tensor& dx_BSC, const at::Tensor& dweight_CW);

}  // namespace trireme
