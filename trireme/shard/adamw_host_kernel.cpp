// A block's masters and moments are made fp32 in a core's cache, stepped, and rounded. Plain loops that the
// compiler vectorises, without fusing a product and a sum. Compiled once for each x86-64 level, in its own
// namespace.
#include "trireme/shard/adamw_host_kernel.h"

#include "trireme/kernels/split_master_kernel.h"
#include "trireme/shard/rounding_kernel.h"

namespace trireme::TRIREME_SIMD_NAMESPACE {
namespace {

constexpr int64_t kBlock = 1024;

void step_block(const AdamwStep& numbers, float* __restrict master, const float* __restrict gradient,
                float* __restrict mean, float* __restrict square, int64_t count) {
  const AdamwStep step = numbers;
  for (int64_t i = 0; i < count; ++i) step_element(step, master[i], gradient[i], mean[i], square[i]);
}

// The moment itself, or a copy in `wide`.
float* opened(float* moment, float* /*wide*/, int64_t /*count*/) {
  return moment;
}
float* opened(const Bf16* moment, float* wide, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = static_cast<uint32_t>(moment[i].bits) << 16;
    memcpy(wide + i, &bits, sizeof(bits));
  }
  return wide;
}
void close(const float* /*opened*/, float* /*moment*/, int64_t /*count*/, uint64_t /*key*/,
           uint64_t /*first*/) {}
void close(const float* opened, Bf16* moment, int64_t count, uint64_t key, uint64_t first_element) {
  round_block(reinterpret_cast<const uint32_t*>(opened), reinterpret_cast<uint16_t*>(moment), count, key,
              first_element);
}

template <typename Moment>
void step_span(const AdamwSpan<Moment>& span, const AdamwStep& step) {
  alignas(64) float joined[kBlock], wide_mean[kBlock], wide_square[kBlock];
  auto* values = reinterpret_cast<uint16_t*>(span.values);
  for (int64_t begin = 0; begin < span.count; begin += kBlock) {
    const int64_t count = span.count - begin < kBlock ? span.count - begin : kBlock;
    const uint64_t element = span.first_element + static_cast<uint64_t>(begin);
    if (span.low) join_masters(values + begin, span.low + begin, reinterpret_cast<uint32_t*>(joined), count);
    float* master = span.low ? joined : span.master + begin;
    float* mean = opened(span.mean + begin, wide_mean, count);
    float* square = opened(span.square + begin, wide_square, count);
    step_block(step, master, span.gradient + begin, mean, square, count);
    close(mean, span.mean + begin, count, span.mean_key, element);
    close(square, span.square + begin, count, span.square_key, element);
    const auto* bits = reinterpret_cast<const uint32_t*>(master);
    if (span.low)
      split_masters(bits, values + begin, span.low + begin, count);
    else if (values)
      round_masters(bits, values + begin, count);
  }
}

}  // namespace

void step_adamw(const AdamwSpan<float>& span, const AdamwStep& step) {
  step_span(span, step);
}
void step_adamw(const AdamwSpan<Bf16>& span, const AdamwStep& step) {
  step_span(span, step);
}

}  // namespace trireme::TRIREME_SIMD_NAMESPACE
