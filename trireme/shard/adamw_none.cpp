// Stands in for adamw_cuda.cpp in a build without CUDA.
#include "trireme/base/error.h"
#include "trireme/shard/adamw_device.h"

namespace trireme {
namespace {

template <typename Moment>
void step_on(const AdamwSpan<Moment>& span, const AdamwStep& step, at::Device device) {
  if (device.is_cpu()) return step_adamw_on_host(span, step);
  throw InternalError(cat("AdamW's kernel for ", device.str(), ": this build has no CUDA half"));
}

}  // namespace

bool has_adamw_kernel(at::Device device) {
  return device.is_cpu();
}

void step_adamw(const AdamwSpan<float>& span, const AdamwStep& step, at::Device device) {
  step_on(span, step, device);
}
void step_adamw(const AdamwSpan<Bf16>& span, const AdamwStep& step, at::Device device) {
  step_on(span, step, device);
}

}  // namespace trireme
