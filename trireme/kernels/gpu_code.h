// What the kernels of GPUs are written with. nvcc gets CUDA's own (gpu_code_cuda.h). The host's compiler gets
// the same names from a player (gpu_code_played.h), which runs a kernel's threads in order; tests hold the
// kernels against oracles there. A kernel's source includes this instead of CUDA's headers, and no libtorch:
//
//   __global__ void __launch_bounds__(256) halve(const float* from, float* to, int64_t count) {
//     const int64_t i = global_thread();
//     if (i < count) store_global(to + i, load_global(from + i) / 2);
//   }
//   launch(halve, {4, 256}, stream, from, to, count);
//
// Rules of such a source, which the player enforces: global memory is reached by load_global and store_global
// alone, shared memory is `__shared__ Shared<float, 32> name` (several elements at once: name.load<4>(i)),
// values cross lanes by __shfl_*_sync.
#pragma once

#include <stdint.h>
#include <string.h>

#include "trireme/kernels/narrow_floats.h"

namespace trireme {

// n values that are loaded and stored as one.
template <typename T, int n>
struct alignas(sizeof(T) * n) Values {
  static_assert(sizeof(T) * n <= 16, "at most 16 bytes an access");
  T at[n];
};

struct LaunchSize {
  int64_t blocks = 0;
  int threads = 0;  // of a block; at most 1024
};

}  // namespace trireme

#ifdef __CUDACC__
#include "trireme/kernels/gpu_code_cuda.h"
#else
#include "trireme/kernels/gpu_code_played.h"
#endif

namespace trireme {

constexpr int kWarp = 32;
constexpr unsigned kWholeWarp = 0xffffffffU;

__device__ inline int64_t global_thread() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline int64_t global_threads() {
  return static_cast<int64_t>(gridDim.x) * blockDim.x;
}

// Sums in one order, which the block's size alone determines.
__device__ inline float warp_sum(float value) {
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) value += __shfl_xor_sync(kWholeWarp, value, lanes);
  return value;
}

// e^x and x / y of which a value of type X is made: of 16 bits, by the hardware's own functions, a fraction
// of the instructions. Their errors are 2 + 1.2 |x| and 2 units of the last place of fp32 (CUDA's guide).
template <typename X>
__device__ inline float exponential(float x) {
  if constexpr (sizeof(X) == 2)
    return __expf(x);
  else
    return expf(x);
}
template <typename X>
__device__ inline float quotient(float x, float y) {
  if constexpr (sizeof(X) == 2)
    return __fdividef(x, y);
  else
    return x / y;
}

}  // namespace trireme
