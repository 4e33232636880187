// AdamW on the host, one element after the other: what its kernels are compared with, bit for bit.
#pragma once

#include <cstring>

#include "trireme/shard/adamw_kernel.h"

namespace trireme::testing {

inline void step_one_by_one(const AdamwSpan<float>& span, const AdamwStep& step) {
  for (int64_t i = 0; i < span.count; ++i)
    step_element(step, span.master[i], span.gradient[i], span.mean[i], span.square[i]);
}
inline void step_one_by_one(const AdamwSpan<Bf16>& span, const AdamwStep& step) {
  const auto widened = [](Bf16 moment) {
    const uint32_t bits = static_cast<uint32_t>(moment.bits) << 16;
    float value = 0;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  };
  const auto rounded = [](float value, uint64_t key, uint64_t element) {
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    return Bf16{rounded_bits(bits, rounding_number(rounding_word(key, element / 4), element))};
  };
  for (int64_t i = 0; i < span.count; ++i) {
    const uint64_t element = span.first_element + static_cast<uint64_t>(i);
    float mean = widened(span.mean[i]), square = widened(span.square[i]);
    step_element(step, span.master[i], span.gradient[i], mean, square);
    span.mean[i] = rounded(mean, span.mean_key, element);
    span.square[i] = rounded(square, span.square_key, element);
  }
}

}  // namespace trireme::testing
