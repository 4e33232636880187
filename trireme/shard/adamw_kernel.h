// AdamW over a flat span of fp32 masters and gradients, in one launch on a GPU (adamw_kernel.cu) and in one
// pass on a CPU (adamw_host_kernel.cpp). Masters are fp32, or split into bf16 values and low bits
// (kernels/master_bits.h). Moments are fp32, or bf16 that are rounded stochastically. An element is widened,
// stepped and rounded in registers or in a core's cache. It takes 28 bytes an element, or 20 with bf16
// moments: each value is read, and each but the gradient written, once; and 2 more where it writes bf16
// values beside fp32 masters.
//
//   g = gradient * factor          m = beta1 m + (1 - beta1) g        v = beta2 v + (1 - beta2) g^2
//   master = master (1 - rate * decay) - step_size * m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)
//
// Operations round in the order written and are not fused, so that a GPU, the host and ATen's operations
// (adamw.cpp) give the same bits.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "trireme/kernels/master_bits.h"
#include "trireme/shard/rounded_bits.h"

namespace trireme {

// The numbers of one step, the same for all elements.
struct AdamwStep {
  float gradient_factor, kept;  // kept: factor of the master, for weight decay
  float beta1, mean_share;      // mean_share: 1 - beta1, computed in fp64
  float beta2, square_share;
  float step_size, correction, epsilon;  // correction: sqrt(1 - beta2^t)
};

inline AdamwStep adamw_step(double beta1, double beta2, double epsilon, double decay, double learning_rate,
                            double gradient_factor, int64_t steps) {
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

// Moment: float or Bf16. The random bits are those of elements [first_element, first_element + count) of the
// tensors that the keys belong to (stochastic_rounding.h); fp32 moments need none.
template <typename Moment>
struct AdamwSpan {
  float* master;  // null: split into `values` and `low`
  uint16_t* low;  // null: not split
  Bf16* values;   // become the masters' nearest; null: none
  const float* gradient;
  Moment* mean;
  Moment* square;
  int64_t count;
  uint64_t mean_key, square_key;
  uint64_t first_element;
};

// Always inlined: what is compiled for several x86-64 levels may leave no copy.
__attribute__((always_inline)) TRIREME_HOST_DEVICE inline void step_element(const AdamwStep& step,
                                                                            float& master, float gradient,
                                                                            float& mean, float& square) {
  const float g = gradient * step.gradient_factor;
  mean = mean * step.beta1 + g * step.mean_share;
  square = square * step.beta2 + g * g * step.square_share;
  master = master * step.kept - step.step_size * mean / (sqrtf(square) / step.correction + step.epsilon);
}

// A value of bf16.
TRIREME_HOST_DEVICE inline float rounded_stochastically(float value, uint16_t number) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  bits = static_cast<uint32_t>(rounded_bits(bits, number)) << 16;
  memcpy(&value, &bits, sizeof(bits));
  return value;
}
TRIREME_HOST_DEVICE inline uint16_t rounding_number(uint64_t word, uint64_t element) {
  return static_cast<uint16_t>(word >> (16 * (element % 4)));
}

// On `stream`, a cudaStream_t of the current device, which the span's pointers are of. The caller asks
// cudaGetLastError.
void launch_adamw(const AdamwSpan<float>& span, const AdamwStep& step, void* stream);
void launch_adamw(const AdamwSpan<Bf16>& span, const AdamwStep& step, void* stream);

}  // namespace trireme
