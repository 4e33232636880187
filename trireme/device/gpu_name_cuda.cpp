#include <ATen/cuda/CUDAContext.h>

#include "trireme/device/gpu_name.h"

namespace trireme {

std::string gpu_name(at::Device device) {
  if (!device.is_cuda()) return {};
  return at::cuda::getDeviceProperties(device.index())->name;
}

}  // namespace trireme
