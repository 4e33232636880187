#include "trireme/comm/nccl_backend.h"

#include <array>

#include <c10/cuda/CUDAException.h>
#include <cuda_runtime_api.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace trireme {

void require_nccl() {}

std::string gpu_bus_address(at::Device device) {
  std::array<char, 32> address{};
  C10_CUDA_CHECK(cudaDeviceGetPCIBusId(address.data(), static_cast<int>(address.size()), device.index()));
  return address.data();
}

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    const std::string& name, int rank,
                                                    const std::vector<int>& world_ranks, at::Device device,
                                                    std::chrono::milliseconds timeout) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  // For the watchdog's messages.
  options->group_name = name;
  options->global_ranks_in_group.assign(world_ranks.begin(), world_ranks.end());
  auto backend =
      c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, static_cast<int>(world_ranks.size()), options);
  // A barrier has no tensor that would tell the device.
  backend->setBoundDeviceId(device);
  return backend;
}

}  // namespace trireme
