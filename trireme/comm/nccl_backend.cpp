#include "trireme/comm/nccl_backend.h"

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace trireme {

void require_nccl() {}

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    const std::string& name, int rank,
                                                    const std::vector<int>& world_ranks, at::Device device,
                                                    std::chrono::milliseconds timeout) {
  // An exchange that begins beside a long kernel takes the first multiprocessors that become free.
  auto options = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
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
