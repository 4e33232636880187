// Stands in for adamw_cuda.cpp in a build without CUDA.
#include "trireme/base/error.h"
#include "trireme/shard/adamw_device.h"

namespace trireme {
namespace {

[[noreturn]] void refuse(at::Device device) {
  throw InternalError(cat("AdamW's kernel for ", device.str(), ": this build has no CUDA half"));
}

}  // namespace

bool has_adamw_kernel(at::Device /*device*/) {
  return false;
}

void step_adamw(const AdamwSpan<float>& /*span*/, const AdamwStep& /*step*/, at::Device device) {
  refuse(device);
}
void step_adamw(const AdamwSpan<Bf16>& /*span*/, const AdamwStep& /*step*/, at::Device device) {
  refuse(device);
}

}  // namespace trireme
