// Stands in for gpu_identity_cuda.cpp in a build without CUDA.
#include "trireme/device/gpu_identity.h"

namespace trireme {

GpuIdentity gpu_identity(at::Device /*device*/) {
  return {};
}

std::string why_no_gpu() {
  return "this build has no CUDA";
}

}  // namespace trireme
