// Groups of processes over NVIDIA GPUs: c10d's NCCL backend. Two sources implement this header:
// nccl_backend.cpp where the build has CUDA, nccl_backend_none.cpp where it has not.
#pragma once

#include <chrono>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace trireme {

// Throws ConfigError where this build has no NCCL.
void require_nccl();

// Collective over the `size` ranks that share `store`; each has its own GPU, `device_index`. A peer that does
// not answer within the timeout is found by c10d's watchdog, which names the collective and ends the process.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                    int size, int device_index,
                                                    std::chrono::milliseconds timeout);

}  // namespace trireme
