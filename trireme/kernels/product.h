// Products of matrices: out = a b, and sum += a b, by the faster of the libraries inside libtorch.
//
// fp32 on an AMD processor with AVX-512 runs in oneDNN: the MKL inside libtorch uses half of the width of
// such a processor's units (docs/benchmarks/history/2026-11-23-products.md). Not so a slice of columns times
// few columns, as LoRA has it: oneDNN's interface copies the slice. All else is ATen's own choice.
#pragma once

#include <ATen/ATen.h>

namespace trireme {

// a [T, k], b [k, n] of one dtype, on one device, of any strides.

// -> [T, n] of the same dtype.
at::Tensor product(const at::Tensor& a_Tk, const at::Tensor& b_kn);
void product_into(at::Tensor out_Tn, const at::Tensor& a_Tk, const at::Tensor& b_kn);
// sum [T, n] of that dtype += a b; one rounding of the whole.
void add_product(const at::Tensor& sum_Tn, const at::Tensor& a_Tk, const at::Tensor& b_kn);

}  // namespace trireme
