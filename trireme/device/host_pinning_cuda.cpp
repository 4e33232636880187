#include <sys/mman.h>
#include <unistd.h>

#include <ATen/Parallel.h>
#include <c10/core/DeviceGuard.h>
#include <cuda_runtime_api.h>

#include "trireme/base/error.h"
#include "trireme/device/host_pinning.h"

namespace trireme {

namespace {

// Has the kernel make the pages by all threads: cudaHostRegister would make them one after another.
void make_pages(uint8_t* data, int64_t bytes) {
  static_cast<void>(madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE));  // fewer to pin, where allowed
  const int64_t page = sysconf(_SC_PAGESIZE);
  at::parallel_for(0, bytes / page, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) data[i * page] = 0;
  });
}

}  // namespace

HostPinning make_host_pinning(at::Device device) {
  if (!device.is_cuda()) return no_pinning();
  HostPinning pinning;
  // The guards are needed: a thread that has used no GPU yet would otherwise use the first one.
  pinning.pin = [device](void* data, int64_t bytes) {
    const c10::DeviceGuard guard(device);
    make_pages(static_cast<uint8_t*>(data), bytes);
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
