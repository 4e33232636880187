// The products of a layer with one of its matrices W [n, k], and with what LoRA (arXiv 2106.09685) trains
// beside it: A [r, k] and B of each parameter whose rows W holds.
//
//   y  = x W' + b + scale (x A') B'       u = scale x A'   [T, r]
//   dx = dy W + scale (dy B) A            v = scale dy B   [T, r]
//   dA += v' x      dB += dy' u           (and dW += dy' x where the model itself is trained)
//
// The parameters that lie in W one below the other (q|k|v, gate|up) have their A so too: one product makes u of
// all of them. Without adapters these are the products of kernels/linear.h, to the bit. Slots are the family's, of the
// bias none or one that the model may lack;
// tensors have the tile dtype and any strides, with the elements of a row side by side.
#pragma once

#include <optional>

#include <ATen/ATen.h>

#include "trireme/model/unit_gradients.h"
#include "trireme/model/unit_weights.h"

namespace trireme {

// -> out [T, n]
void adapted_linear_into(at::Tensor& out_Tn, const at::Tensor& x_Tk, const UnitWeights& w, size_t matrix,
                         std::optional<size_t> bias);
at::Tensor adapted_linear(const at::Tensor& x_Tk, const UnitWeights& w, size_t matrix,
                          std::optional<size_t> bias);
// The first `rows` rows of the matrix alone, which end where a parameter does.
at::Tensor adapted_linear_of_rows(const at::Tensor& x_Tk, const UnitWeights& w, size_t matrix,
                                  std::optional<size_t> bias, int64_t rows);
// sum [T, n] += y
void add_adapted_linear(const at::Tensor& sum_Tn, const at::Tensor& x_Tk, const UnitWeights& w, size_t matrix,
                        std::optional<size_t> bias);
// dy [T, n] -> dx [T, k]; into memory that may have another dtype.
at::Tensor adapted_linear_backward(const at::Tensor& dy_Tn, const UnitWeights& w, size_t matrix);
void adapted_linear_backward_into(at::Tensor& dx_Tk, const at::Tensor& dy_Tn, const UnitWeights& w,
                                  size_t matrix);
void add_adapted_linear_gradients(UnitGradients& gradients, const UnitWeights& w, size_t matrix,
                                  std::optional<size_t> bias, const at::Tensor& dy_Tn,
                                  const at::Tensor& x_Tk);

}  // namespace trireme
