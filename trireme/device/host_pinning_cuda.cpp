#include <c10/core/DeviceGuard.h>
#include <cuda_runtime_api.h>

#include "trireme/base/error.h"
#include "trireme/device/host_pinning.h"

namespace trireme {

HostPinning make_host_pinning(at::Device device) {
  if (!device.is_cuda()) return no_pinning();
  HostPinning pinning;
  // The guards: a thread that has used no GPU yet would begin to use the first one.
  pinning.pin = [device](void* data, int64_t bytes) {
    const c10::DeviceGuard guard(device);
    const cudaError_t status = cudaHostRegister(data, static_cast<size_t>(bytes), cudaHostRegisterPortable);
    if (status == cudaSuccess) return std::string();
    static_cast<void>(cudaGetLastError());  // else the next check of a launch would find it
    return cat("cudaHostRegister says: ", cudaGetErrorString(status));
  };
  pinning.unpin = [device](void* data) {
    try {
      const c10::DeviceGuard guard(device);
      if (cudaHostUnregister(data) != cudaSuccess) static_cast<void>(cudaGetLastError());
    } catch (const c10::Error&) {
      // The driver went before us, at the end of the process, and its pins with it.
    }
  };
  return pinning;
}

}  // namespace trireme
