// Chunks of rows between global memory and a thread's fp32 registers, for kernels (gpu_code.h).
#pragma once

#include "trireme/kernels/gpu_code.h"
#include "trireme/kernels/gpu_rows.h"

namespace trireme {

// `count` values (more than kChunk: all of them; below 0: none) from `from`; those beyond are 0. `aligned`:
// chunks are whole and lie at multiples of 16 bytes.
template <typename T>
__device__ inline void load_chunk(float (&to)[kChunk], const T* from, int64_t count, bool aligned) {
  constexpr int kAccess = 16 / sizeof(T);
  if (aligned && count > 0) {
#pragma unroll
    for (int begin = 0; begin < kChunk; begin += kAccess) {
      const Values<T, kAccess> values = load_global<kAccess>(from + begin);
#pragma unroll
      for (int i = 0; i < kAccess; ++i) to[begin + i] = widened(values.at[i]);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kChunk; ++i) to[i] = i < count ? widened(load_global(from + i)) : 0;
}

template <typename T>
__device__ inline void store_chunk(T* to, const float (&from)[kChunk], int64_t count, bool aligned) {
  constexpr int kAccess = 16 / sizeof(T);
  if (aligned && count > 0) {
#pragma unroll
    for (int begin = 0; begin < kChunk; begin += kAccess) {
      Values<T, kAccess> values;
#pragma unroll
      for (int i = 0; i < kAccess; ++i) values.at[i] = narrowed<T>(from[begin + i]);
      store_global(to + begin, values);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kChunk; ++i)
    if (i < count) store_global(to + i, narrowed<T>(from[i]));
}

// The same of a vector whose number format is known when the kernel runs.
__device__ inline void load_numbers(float (&to)[kChunk], const void* from, GpuNumber number, int64_t begin,
                                    int64_t count, bool aligned) {
  if (number == GpuNumber::fp32) load_chunk(to, static_cast<const float*>(from) + begin, count, aligned);
  if (number == GpuNumber::bf16) load_chunk(to, static_cast<const Bf16*>(from) + begin, count, aligned);
  if (number == GpuNumber::fp16) load_chunk(to, static_cast<const Fp16*>(from) + begin, count, aligned);
}

// Sums over a block of whole warps, in an order that its size determines.
constexpr int kMostSums = 3, kMostWarps = 32;
struct BlockSums {
  Shared<float, 2 * kMostSums * kMostWarps> parts;
};

// Each value becomes its sum over the block's threads. `turn` is 0 at first; it alternates between two halves
// of the scratch memory, so that one barrier a call is enough.
template <int sums>
__device__ inline void block_sums(float (&values)[sums], BlockSums& scratch, int& turn) {
  static_assert(sums <= kMostSums, "scratch memory");
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const int base = turn * kMostSums * kMostWarps;
#pragma unroll
  for (int i = 0; i < sums; ++i) {
    values[i] = warp_sum(values[i]);
    if (lane == 0) scratch.parts[base + i * kMostWarps + warp] = values[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < sums; ++i)
    values[i] =
        warp_sum(lane < warps ? static_cast<float>(scratch.parts[base + i * kMostWarps + lane]) : 0.0F);
  turn = 1 - turn;
}

}  // namespace trireme
