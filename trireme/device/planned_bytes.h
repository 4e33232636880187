// How many bytes one of the ranks that share a memory plans with, in the engine and in the planner: a tenth
// stays free for cached blocks that fit no request (cpu_caching_allocator.h), and each process has memory
// outside tensors. No torch here.
#pragma once

#include <algorithm>
#include <cstdint>

namespace trireme {

// The share of the memory left that is planned with.
inline constexpr double kPlannedMemoryShare = 0.9;
// Loaded code, thread stacks, buffers of oneDNN, MKL and Gloo.
inline constexpr int64_t kOutsideOnHost_bytes = int64_t{256} << 20;

// `ranks` (1 or more) share `left_bytes`. 0 if nothing is left.
constexpr int64_t planned_bytes(int64_t left_bytes, int64_t ranks, int64_t outside_bytes) {
  const int64_t share = left_bytes / ranks;
  const auto planned = static_cast<int64_t>(kPlannedMemoryShare * static_cast<double>(share));
  return std::max<int64_t>(0, planned - outside_bytes);
}

}  // namespace trireme
