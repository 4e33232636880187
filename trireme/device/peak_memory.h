// The memory that a run reports.
#pragma once

#include <cstdint>

#include <ATen/ATen.h>

namespace trireme {

// Most bytes that this process has used at once: resident memory on the CPU, allocated by libtorch on a GPU.
int64_t peak_memory_bytes(at::Device device);

}  // namespace trireme
