#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "trireme/shard/narrow_adamw_device.h"

namespace trireme {

bool has_narrow_adamw(at::Device device) {
  return device.is_cuda();
}

void step_narrow_adamw(const NarrowAdamwSpan& span, const NarrowAdamwStep& step, at::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  launch_narrow_adamw(span, step, c10::cuda::getCurrentCUDAStream(device.index()).stream());
  C10_CUDA_CHECK(cudaGetLastError());
}

}  // namespace trireme
