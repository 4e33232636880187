#include <c10/core/DeviceGuard.h>
#include <cuda_runtime_api.h>

#include "trireme/base/error.h"
#include "trireme/device/host_pinning.h"

namespace trireme {

HostPinning make_host_pinning(at::Device device) {
  if (!device.is_cuda()) return no_pinning();
  HostPinning pinning;
  // The guards are needed: a thread that has used no GPU yet would otherwise use the first one.
  pinning.pin = [device](void* data, int64_t bytes) {
    const c10::DeviceGuard guard(device);
    const cudaError_t status = cudaHostRegister(data, static_cast<size_t>(bytes), cudaHostRegisterPortable);
    if (status == cudaSuccess) return std::string();
    static_cast<void>(cudaGetLastError());  // else the next launch check would report it
    return cat("cudaHostRegister says: ", cudaGetErrorString(status));
  };
  pinning.unpin = [device](void* data) {
    try {
      const c10::DeviceGuard guard(device);
      if (cudaHostUnregister(data) != cudaSuccess) static_cast<void>(cudaGetLastError());
    } catch (const c10::Error&) {
      // At process exit the driver may be gone already, and its pins with it.
    }
  };
  return pinning;
}

}  // namespace trireme
