// How many bytes of tensors a rank may plan, computed before any rank allocates them:
//
//   bytes left on the machine or GPU / ranks that share it, minus a tenth, minus memory outside the account
//
// The tenth is for cached blocks that fit no request (planned_bytes.h).
#pragma once

#include <cstdint>

#include <ATen/ATen.h>

#include "trireme/device/cpu_caching_allocator.h"
#include "trireme/device/planned_bytes.h"

namespace trireme {

static_assert(kPlannedMemoryShare <= 1 - kCachedShare);

// What this process has cached on the device and in the host's pageable memory, and no tensor holds, goes
// back to the system, which counts it as used. Not collective.
void release_cached_memory(at::Device device);

// Bytes that could be allocated on the device now: host_memory_left_bytes() on the CPU, the driver's free
// memory on a GPU. Not collective; all ranks of a machine must call it before any of them allocates.
int64_t device_memory_left_bytes(at::Device device);

// All of it: host_memory_limit_bytes() on the CPU, a GPU's memory.
int64_t device_memory_bytes(at::Device device);

// One rank's budget if `ranks` (1 or more) share `left_bytes`. 0 if nothing is left.
int64_t memory_budget_bytes(at::Device device, int64_t left_bytes, int ranks);

}  // namespace trireme
