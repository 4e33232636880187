// A caching allocator for libtorch's CPU tensors. glibc gives large blocks back to the kernel and faults them
// in again on the next use, which costs a training step up to a third of its time. This allocator keeps freed
// blocks for the next request of a similar size, asks for huge pages, and counts each block in the memory
// scope of the thread that requested it (memory_account.h). In-use and cached bytes together never exceed the
// peak in use by more than kCachedShare. If memory runs out, it throws a ConfigError that says what holds the
// memory and which options would help.
//
// Only the program installs this allocator; the library never does.
#pragma once

#include <cstdint>

#include <c10/core/Allocator.h>

#include "trireme/device/memory_category.h"

namespace trireme {

inline constexpr double kCachedShare = 0.1;  // of the peak in use

struct HostMemoryCounts {
  int64_t in_use_bytes = 0;  // by live tensors, blocks of 64 KiB and more
  int64_t peak_in_use_bytes = 0;
  int64_t reserved_bytes = 0;  // in use and cached
};

// Installs it as libtorch's CPU allocator. Call this once, before the first tensor.
void install_cpu_caching_allocator();
// All zero when it is not installed.
HostMemoryCounts host_memory_counts();

// Unmaps the cached blocks.
void release_cached_host_memory();

// Limits the bytes that tensors of this process may hold (0: no limit). A request beyond the limit throws an
// error with advice, where a control group's limit would kill the process. See host_memory_limit_bytes().
void limit_host_memory(int64_t bytes);

// Counts the block of a CPU storage as `category`. Ignores blocks of other allocators.
void count_host_block_as(const c10::DataPtr& data, MemoryCategory category);

}  // namespace trireme
