// What MFU is measured against: the FLOP/s that this process's device could do at best.
#pragma once

#include <ATen/ATen.h>

namespace trireme {

// Multiplies square matrices for about `seconds` with the threads of this process and returns the best rate
// seen, in FLOP/s. Not collective, but ranks that share a machine should measure at the same time.
double measure_matmul_rate(at::Device device, at::ScalarType dtype, double seconds = 0.2);

// Most bytes that this process has used at once: resident memory on the CPU, allocated by libtorch on a GPU.
int64_t peak_memory_bytes(at::Device device);

}  // namespace trireme
