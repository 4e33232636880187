// Stands in for narrow_adamw_cuda.cpp in a build without CUDA.
#include "trireme/base/error.h"
#include "trireme/shard/narrow_adamw_device.h"

namespace trireme {

bool has_narrow_adamw(at::Device /*device*/) {
  return false;
}

void step_narrow_adamw(const NarrowAdamwSpan& /*span*/, const NarrowAdamwStep& /*step*/, at::Device device) {
  throw InternalError(cat("AdamW's kernel for ", device.str(), ": this build has no CUDA half"));
}

}  // namespace trireme
