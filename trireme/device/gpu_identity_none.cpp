// Stands in for gpu_identity_cuda.cpp in a build without CUDA.
#include "trireme/device/gpu_identity.h"

namespace trireme {

GpuIdentity gpu_identity(at::Device /*device*/) {
  return {};
}

}  // namespace trireme
