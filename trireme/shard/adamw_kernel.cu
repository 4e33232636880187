// Each thread steps eight elements. Memory traffic determines the time.
#include "trireme/kernels/gpu_chunks.h"
#include "trireme/shard/adamw_kernel.h"

namespace trireme {
namespace {

constexpr int kAdamwThreads = 256;

// The moments of elements from `element` on become values of bf16.
__device__ inline void round_moment(float (&moment)[kChunk], uint64_t key, uint64_t element) {
  uint64_t word = 0;
#pragma unroll
  for (int i = 0; i < kChunk; ++i, ++element) {
    if (i == 0 || element % 4 == 0) word = rounding_word(key, element / 4);
    moment[i] = rounded_stochastically(moment[i], rounding_number(word, element));
  }
}

// Halves of masters, as they are stored.
template <typename Half>
__device__ inline void load_halves(Half (&to)[kChunk], const Half* from, int64_t count, bool wide) {
  static_assert(sizeof(Half) * kChunk == 16, "one access");
  if (wide) {
    const Values<Half, kChunk> halves = load_global<kChunk>(from);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) to[i] = halves.at[i];
    return;
  }
#pragma unroll
  for (int i = 0; i < kChunk; ++i) to[i] = i < count ? load_global(from + i) : Half{};
}
template <typename Half>
__device__ inline void store_halves(Half* to, const Half (&from)[kChunk], int64_t count, bool wide) {
  if (wide) {
    Values<Half, kChunk> halves;
#pragma unroll
    for (int i = 0; i < kChunk; ++i) halves.at[i] = from[i];
    store_global(to, halves);
    return;
  }
#pragma unroll
  for (int i = 0; i < kChunk; ++i)
    if (i < count) store_global(to + i, from[i]);
}

template <typename Moment>
__device__ inline void load_masters(float (&master)[kChunk], const AdamwSpan<Moment>& span, int64_t begin,
                                    int64_t count, bool wide) {
  if (span.master) {
    load_chunk(master, span.master + begin, count, wide);
    return;
  }
  Bf16 values[kChunk];
  uint16_t low[kChunk];
  load_halves(values, span.values + begin, count, wide);
  load_halves(low, span.low + begin, count, wide);
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    const uint32_t bits = master_of(values[i].bits, low[i]);
    memcpy(&master[i], &bits, sizeof(bits));
  }
}
template <typename Moment>
__device__ inline void store_masters(const AdamwSpan<Moment>& span, const float (&master)[kChunk],
                                     int64_t begin, int64_t count, bool wide) {
  if (span.master) store_chunk(span.master + begin, master, count, wide);
  if (!span.values) return;
  Bf16 values[kChunk];
  uint16_t low[kChunk];
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    uint32_t bits;
    memcpy(&bits, &master[i], sizeof(bits));
    values[i].bits = value_of_master(bits);
    low[i] = low_of_master(bits);
  }
  store_halves(span.values + begin, values, count, wide);
  if (span.low) store_halves(span.low + begin, low, count, wide);
}

template <typename Moment>
__global__ void __launch_bounds__(kAdamwThreads) adamw(AdamwSpan<Moment> span, AdamwStep step, bool aligned) {
  const int64_t begin = global_thread() * kChunk, count = span.count - begin;
  const bool wide = aligned && count >= kChunk;
  float master[kChunk], gradient[kChunk], mean[kChunk], square[kChunk];
  load_masters(master, span, begin, count, wide);
  load_chunk(gradient, span.gradient + begin, count, wide);
  load_chunk(mean, span.mean + begin, count, wide);
  load_chunk(square, span.square + begin, count, wide);
#pragma unroll
  for (int i = 0; i < kChunk; ++i) step_element(step, master[i], gradient[i], mean[i], square[i]);
  if constexpr (sizeof(Moment) == sizeof(Bf16)) {
    const uint64_t element = span.first_element + static_cast<uint64_t>(begin);
    round_moment(mean, span.mean_key, element);
    round_moment(square, span.square_key, element);
  }
  store_masters(span, master, begin, count, wide);
  store_chunk(span.mean + begin, mean, count, wide);
  store_chunk(span.square + begin, square, count, wide);
}

template <typename Moment>
void launch_step(const AdamwSpan<Moment>& span, const AdamwStep& step, void* stream) {
  if (span.count == 0) return;
  const auto at_16 = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; };
  const bool aligned = at_16(span.master) && at_16(span.low) && at_16(span.values) && at_16(span.gradient) &&
                       at_16(span.mean) && at_16(span.square);
  constexpr int64_t kOfBlock = int64_t{kAdamwThreads} * kChunk;
  launch(adamw<Moment>, {(span.count + kOfBlock - 1) / kOfBlock, kAdamwThreads}, stream, span, step, aligned);
}

}  // namespace

void launch_adamw(const AdamwSpan<float>& span, const AdamwStep& step, void* stream) {
  launch_step(span, step, stream);
}
void launch_adamw(const AdamwSpan<Bf16>& span, const AdamwStep& step, void* stream) {
  launch_step(span, step, stream);
}

}  // namespace trireme
