// AdamW over flat fp32 masters and gradients, with bf16 moments that are rounded stochastically. Each element
// is widened, stepped and rounded in registers. Compiled for a GPU (narrow_adamw_kernel.cu) and for the host,
// where tests check its numbers. Operations round in the order written and are not fused, so that both give
// the same bits.
//
//   g = gradient * factor          m = beta1 m + (1 - beta1) g        v = beta2 v + (1 - beta2) g^2
//   master = master (1 - rate * decay) - step_size * m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "trireme/shard/rounded_bits.h"

namespace trireme {

// The numbers of one step, the same for all elements.
struct NarrowAdamwStep {
  float gradient_factor, kept;  // kept: factor of the master, for weight decay
  float beta1, mean_share;      // mean_share: 1 - beta1, computed in fp64
  float beta2, square_share;
  float step_size, correction, epsilon;  // correction: sqrt(1 - beta2^t)
};

inline NarrowAdamwStep narrow_adamw_step(double beta1, double beta2, double epsilon, double decay,
                                         double learning_rate, double gradient_factor, int64_t steps) {
  const auto t = static_cast<double>(steps);
  return {static_cast<float>(gradient_factor),
          static_cast<float>(1 - learning_rate * decay),
          static_cast<float>(beta1),
          static_cast<float>(1 - beta1),
          static_cast<float>(beta2),
          static_cast<float>(1 - beta2),
          static_cast<float>(learning_rate / (1 - std::pow(beta1, t))),
          static_cast<float>(std::sqrt(1 - std::pow(beta2, t))),
          static_cast<float>(epsilon)};
}

// Elements [0, count) of a span; mean and square are bits of bf16. The random bits are those of elements
// [first_element, first_element + count) of the tensors that the keys belong to.
struct NarrowAdamwSpan {
  float* master;
  const float* gradient;
  uint16_t* mean;
  uint16_t* square;
  int64_t count;
  uint64_t mean_key, square_key;
  uint64_t first_element;
};

TRIREME_HOST_DEVICE inline float widened(uint16_t bf16) {
  const uint32_t bits = static_cast<uint32_t>(bf16) << 16;
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}
TRIREME_HOST_DEVICE inline uint16_t narrowed(float value, uint16_t number) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return rounded_bits(bits, number);
}

// Steps one element. The last two arguments are its random numbers.
TRIREME_HOST_DEVICE inline void step_element(const NarrowAdamwStep& step, float& master, float gradient,
                                             uint16_t& mean, uint16_t& square, uint16_t mean_number,
                                             uint16_t square_number) {
  const float g = gradient * step.gradient_factor;
  const float m = widened(mean) * step.beta1 + g * step.mean_share;
  const float v = widened(square) * step.beta2 + g * g * step.square_share;
  master = master * step.kept - step.step_size * m / (sqrtf(v) / step.correction + step.epsilon);
  mean = narrowed(m, mean_number);
  square = narrowed(v, square_number);
}

// Steps elements [begin, end) of a span, at any alignment.
TRIREME_HOST_DEVICE inline void step_elements(const NarrowAdamwSpan& span, const NarrowAdamwStep& step,
                                              int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const uint64_t element = span.first_element + static_cast<uint64_t>(i);
    const auto number = [element](uint64_t key) {
      return static_cast<uint16_t>(rounding_word(key, element / 4) >> (16 * (element % 4)));
    };
    step_element(step, span.master[i], span.gradient[i], span.mean[i], span.square[i], number(span.mean_key),
                 number(span.square_key));
  }
}

// The kernel, on `stream`, a cudaStream_t of the current device, which the span's pointers are of.
void launch_narrow_adamw(const NarrowAdamwSpan& span, const NarrowAdamwStep& step, void* stream);

}  // namespace trireme
