#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "trireme/shard/adamw_device.h"

namespace trireme {
namespace {

template <typename Moment>
void step_on_current_stream(const AdamwSpan<Moment>& span, const AdamwStep& step, at::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  launch_adamw(span, step, c10::cuda::getCurrentCUDAStream(device.index()).stream());
  C10_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

bool has_adamw_kernel(at::Device device) {
  return device.is_cuda();
}

void step_adamw(const AdamwSpan<float>& span, const AdamwStep& step, at::Device device) {
  step_on_current_stream(span, step, device);
}
void step_adamw(const AdamwSpan<Bf16>& span, const AdamwStep& step, at::Device device) {
  step_on_current_stream(span, step, device);
}

}  // namespace trireme
