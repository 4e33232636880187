// A caching allocator for libtorch's CPU tensors. glibc gives large blocks back to the kernel and faults them
// in again on the next use, which costs a training step up to a third of its time. This one keeps freed
// blocks for the next request of a like size, asks for huge pages, and counts bytes. What it holds never
// exceeds 1.1 x the most that was in use.
//
// The program registers it; the library never does.
#pragma once

#include <cstdint>

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

}  // namespace trireme
