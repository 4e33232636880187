// fp32 masters to bf16 values and low bits, and back (master_bits.h). Tensors are flat, contiguous, on one
// device and equally long.
#pragma once

#include <ATen/ATen.h>

namespace trireme {

// to = from, each of any float dtype. fp32 becomes bf16 as masters do.
void round_masters(const at::Tensor& from, const at::Tensor& to);

// fp32 [E] -> bf16 [E], int16 [E].
void split_masters(const at::Tensor& masters, const at::Tensor& values, const at::Tensor& low);
// bf16 [E], int16 [E] -> fp32 [E].
void join_masters(const at::Tensor& values, const at::Tensor& low, const at::Tensor& masters);

}  // namespace trireme
