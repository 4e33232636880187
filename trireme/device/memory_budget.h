// How many bytes a rank may plan to fill with tensors, asked before any rank allocates them:
//
//   left on the machine or the GPU / ranks that share it, less a tenth, less what lies outside the account
//
// The tenth: a caching allocator may hold blocks of sizes that fit nothing asked now, on the CPU up to 1.1 x the most
// that was in use (cpu_caching_allocator.h).
#pragma once

#include <cstdint>

#include <ATen/ATen.h>

namespace trireme {

// Bytes that could be allocated on the device now: host_memory_left_bytes on the CPU, what the driver has free on a
// GPU. Not collective; ranks of one machine ask before one of them allocates.
int64_t device_memory_left_bytes(at::Device device);

// One rank's part of `left_bytes` that `ranks` (1 or more) share. 0 where nothing is left.
int64_t memory_budget_bytes(at::Device device, int64_t left_bytes, int ranks);

}  // namespace trireme
