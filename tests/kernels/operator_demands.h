// What libtorch's CUDA attention operators ask of their tensors, as checks that throw c10::Error. Each names
// its source.
#pragma once

#include <cstdint>

#include <ATen/ATen.h>

namespace trireme_test {

// 16-byte loads and stores: FlashAttention's kernel_traits.h (uint128_t copies), cuDNN's and CUTLASS' 128-bit
// alignment. Of the address, and of every stride but the last's, which is 1 (flash_api.cpp: "must have
// contiguous last dimension"; cudnn-frontend: "The stride for the last dimension corresponding to the
// embedding size per head should be 1"; pytorch_utils.h: CHECK_NOSPARSE_LASTCONTIGUOUS_CUDA).
inline void demand_rows_of_16_bytes(const at::Tensor& x, const char* name) {
  TORCH_CHECK(x.stride(-1) == 1, name, ": the last dimension has stride ", x.stride(-1));
  TORCH_CHECK(reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0, name, ": not at 16 bytes");
  for (int64_t dim = 0; dim + 1 < x.dim(); ++dim)
    TORCH_CHECK(x.size(dim) == 1 || x.stride(dim) * x.element_size() % 16 == 0, name, ": stride ",
                x.stride(dim), " of dimension ", dim, " is no multiple of 16 bytes");
}

inline void demand_shape(const at::Tensor& x, at::IntArrayRef sizes, const char* name) {
  TORCH_CHECK(x.sizes() == sizes, name, ": got ", x.sizes(), ", expected ", sizes);
}

inline void demand_half(const at::Tensor& x, const char* name) {
  TORCH_CHECK(x.scalar_type() == at::kHalf || x.scalar_type() == at::kBFloat16, name, ": got ",
              x.scalar_type(), ", expected fp16 or bf16");
}

}  // namespace trireme_test
