// A linear layer's weight gradient of bf16 values on the CPU, summed in fp32: no sum of a tile is rounded to
// 16 bits, and no copy of the weight's size is made.
//
//   gradient [n, k] += dy' x, in blocks of 64 rows of n and 512 tokens:
//
//   x  [512, k]   -> panels of 64 columns (tile_gemm.h), once for all threads
//   dy [512, 64]  -> its transpose [64, 512]
//   product of the two, added to 64 rows of the gradient panel by panel
#pragma once

#include <ATen/ATen.h>

#include "trireme/kernels/sum_state.h"
#include "trireme/kernels/tile_gemm.h"

namespace trireme {

// gradient [n, k] fp32, contiguous, += dy [T, n]' x [T, k] of bf16; where its state is undefined, dy' x is
// written over it. Columns of dy and x are contiguous. The bits do not depend on the number of threads.
void add_weight_gradient(const at::Tensor& gradient_nk, const at::Tensor& dy_Tn, const at::Tensor& x_Tk,
                         SumState state, Bf16Units units);

}  // namespace trireme
