// A caching allocator for libtorch's CPU tensors. glibc gives large blocks back to the kernel and faults them
// in again on the next use, which costs a training step up to a third of its time. This one keeps freed
// blocks for the next request of a like size, asks for huge pages, and counts bytes, each block in the place
// of the thread that asked for it (memory_account.h). What it holds never exceeds 1.1 x the most that was in
// use. Memory that is not there is a ConfigError that says what holds it and which options would help.
//
// The program registers it; the library never does.
#pragma once

#include <cstdint>

#include <c10/core/Allocator.h>

#include "trireme/device/memory_category.h"

namespace trireme {

struct HostMemoryCounts {
  int64_t in_use_bytes = 0;       // by live tensors, blocks of 64 KiB and more
  int64_t peak_in_use_bytes = 0;  // since the start or the last reset
  int64_t reserved_bytes = 0;     // in use and cached
  int64_t peak_reserved_bytes = 0;
};

// Makes it libtorch's CPU allocator from here on. To be called once, before the first tensor.
void install_cpu_caching_allocator();
// All zero when it is not installed.
HostMemoryCounts host_memory_counts();
void reset_host_memory_peaks();

// From here on it refuses to let tensors of this process hold more than `bytes` (0: no limit), so that a
// control group's limit is an error that tells what to do and not a kill. See host_memory_limit_bytes().
void limit_host_memory(int64_t bytes);

// The block of a CPU storage is counted as another category; nothing happens when it is not of this
// allocator.
void count_host_block_as(const c10::DataPtr& data, MemoryCategory category);

}  // namespace trireme
