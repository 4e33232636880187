// What launches of our own kernels share: which tensors kernels know, and the stream of a tensor's device.
// For builds with CUDA.
#pragma once

#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "trireme/kernels/gpu_rows.h"

namespace trireme::gpu {

// For kernels, which count in 32 bits.
inline constexpr int64_t kTooManyForKernels = int64_t{1} << 31;

inline bool kernels_know(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
}
inline GpuNumber number_of(const at::Tensor& x) {
  return x.scalar_type() == at::kFloat      ? GpuNumber::fp32
         : x.scalar_type() == at::kBFloat16 ? GpuNumber::bf16
                                            : GpuNumber::fp16;
}

// Calls launch(stream) on x's device.
template <typename F>
void on_stream(const at::Tensor& x, const F& launch) {
  const c10::cuda::CUDAGuard guard(x.device());
  launch(static_cast<void*>(c10::cuda::getCurrentCUDAStream(x.device().index()).stream()));
  C10_CUDA_CHECK(cudaGetLastError());
}

}  // namespace trireme::gpu
