// Stands in for gpu_name_cuda.cpp in a build without CUDA.
#include "trireme/device/gpu_name.h"

namespace trireme {

std::string gpu_name(at::Device /*device*/) {
  return {};
}

}  // namespace trireme
