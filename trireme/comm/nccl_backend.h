// Groups of processes over NVIDIA GPUs: c10d's NCCL backend. Two sources implement this header:
// nccl_backend.cpp where the build has CUDA, nccl_backend_none.cpp where it has not.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace trireme {

// Throws ConfigError where this build has no NCCL.
void require_nccl();

// Collective over the `world_ranks` that share `store`; this rank has index `rank` among them. Each rank has
// a separate GPU, `device`. The communicator is made at the first collective, or by eagerConnectSingleDevice.
// It takes 150 to 500 MB of the GPU; one that exchanges between all pairs of ranks, some GB (3.3 on 8 H100:
// NVIDIA/nccl issue 1685). If a peer does not answer within the timeout, c10d's watchdog names the collective
// and ends the process.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    const std::string& name, int rank,
                                                    const std::vector<int>& world_ranks, at::Device device,
                                                    std::chrono::milliseconds timeout);

}  // namespace trireme
