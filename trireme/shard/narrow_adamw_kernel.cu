// Each thread steps eight elements, in loads of 16 bytes where the span is aligned to 16. Memory traffic, 22
// bytes an element, determines the kernel's time.
#include <cuda_runtime.h>

#include "trireme/shard/narrow_adamw.h"

namespace trireme {
namespace {

constexpr int kElements = 8, kThreads = 256;
constexpr int64_t kMostBlocks = 8192;  // threads loop over longer spans

template <typename T>
__device__ void load(T (&to)[kElements], const T* from) {
  for (int part = 0; part < static_cast<int>(sizeof(to) / sizeof(uint4)); ++part)
    reinterpret_cast<uint4*>(to)[part] = reinterpret_cast<const uint4*>(from)[part];
}
template <typename T>
__device__ void store(T* to, const T (&from)[kElements]) {
  for (int part = 0; part < static_cast<int>(sizeof(from) / sizeof(uint4)); ++part)
    reinterpret_cast<uint4*>(to)[part] = reinterpret_cast<const uint4*>(from)[part];
}

__device__ void step_eight(const NarrowAdamwSpan& span, const NarrowAdamwStep& step, int64_t begin) {
  alignas(16) float master[kElements], gradient[kElements];
  alignas(16) uint16_t mean[kElements], square[kElements];
  load(master, span.master + begin);
  load(gradient, span.gradient + begin);
  load(mean, span.mean + begin);
  load(square, span.square + begin);
  const uint64_t group = (span.first_element + static_cast<uint64_t>(begin)) / 4;
#pragma unroll
  for (int four = 0; four < kElements; four += 4) {
    const uint64_t for_mean = rounding_word(span.mean_key, group + four / 4);
    const uint64_t for_square = rounding_word(span.square_key, group + four / 4);
#pragma unroll
    for (int lane = 0; lane < 4; ++lane)
      step_element(step, master[four + lane], gradient[four + lane], mean[four + lane], square[four + lane],
                   static_cast<uint16_t>(for_mean >> (16 * lane)),
                   static_cast<uint16_t>(for_square >> (16 * lane)));
  }
  store(span.master + begin, master);
  store(span.mean + begin, mean);
  store(span.square + begin, square);
}

template <bool kAligned>
__global__ void __launch_bounds__(kThreads) narrow_adamw(NarrowAdamwSpan span, NarrowAdamwStep step) {
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (int64_t begin = thread * kElements; begin < span.count; begin += threads * kElements) {
    const int64_t end = begin + kElements;
    if (kAligned && end <= span.count) {
      step_eight(span, step, begin);
    } else {
      step_elements(span, step, begin, end < span.count ? end : span.count);
    }
  }
}

bool aligned(const NarrowAdamwSpan& span) {
  const auto at_16 = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; };
  return at_16(span.master) && at_16(span.gradient) && at_16(span.mean) && at_16(span.square) &&
         span.first_element % 4 == 0;
}

}  // namespace

void launch_narrow_adamw(const NarrowAdamwSpan& span, const NarrowAdamwStep& step, void* stream) {
  if (span.count == 0) return;
  constexpr int64_t kOfBlock = int64_t{kThreads} * kElements;
  const int64_t blocks = (span.count + kOfBlock - 1) / kOfBlock;
  const auto grid = static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks);
  const auto kernel = aligned(span) ? narrow_adamw<true> : narrow_adamw<false>;
  kernel<<<grid, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(span, step);
}

}  // namespace trireme
