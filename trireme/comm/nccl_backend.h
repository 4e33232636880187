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

// Collective over the `world_ranks` that share `store`, of which this is number `rank`; each has its own GPU, `device`.
// Its communicator, 150 to 500 MB of the GPU, is made at its first collective. A peer that does not answer within the
// timeout is found by c10d's watchdog, which names the collective and ends the process.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    const std::string& name, int rank,
                                                    const std::vector<int>& world_ranks, at::Device device,
                                                    std::chrono::milliseconds timeout);

}  // namespace trireme
