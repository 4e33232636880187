// The second stage of sums over rows, for the kernels of norms' gradients.
#pragma once

#include <stdint.h>

namespace trireme {

// sums[i] += partial[0][i] + partial[1][i] + ... for i < count, in an order that `rows` determines. partial
// fp32 [rows, stride]. On `stream`, a cudaStream_t of the current device.
void launch_partial_sums(const float* partial, int64_t rows, int64_t stride, int64_t count, float* sums,
                         void* stream);

}  // namespace trireme
