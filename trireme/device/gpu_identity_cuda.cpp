#include <array>
#include <iomanip>
#include <sstream>

#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>

#include "trireme/device/gpu_identity.h"

namespace trireme {

GpuIdentity gpu_identity(at::Device device) {
  if (!device.is_cuda()) return {};
  const cudaDeviceProp& properties = *at::cuda::getDeviceProperties(device.index());
  std::array<char, 32> bus{};
  C10_CUDA_CHECK(cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), device.index()));
  std::ostringstream uuid;
  uuid << std::hex << std::setfill('0');
  for (const char byte : properties.uuid.bytes)
    uuid << std::setw(2) << static_cast<int>(static_cast<unsigned char>(byte));
  return {properties.name, uuid.str(), bus.data()};
}

std::string why_no_gpu() {
  try {
    c10::cuda::device_count_ensure_non_zero();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

}  // namespace trireme
