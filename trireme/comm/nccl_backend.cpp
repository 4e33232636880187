#include "trireme/comm/nccl_backend.h"

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace trireme {

void require_nccl() {}

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                    int size, int device_index,
                                                    std::chrono::milliseconds timeout) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
  // A barrier has no tensor that would tell the device.
  backend->setBoundDeviceId(at::Device(at::kCUDA, static_cast<at::DeviceIndex>(device_index)));
  return backend;
}

}  // namespace trireme
