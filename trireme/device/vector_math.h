// Arithmetic that loops of a kernel file inline: no library calls, so that the compiler vectorises them. In
// an anonymous namespace because each kernel file is compiled for several instruction sets.
#pragma once

#include <stdint.h>
#include <string.h>

namespace {

inline float bf16_to_float(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  memcpy(&value, &wide, sizeof(value));
  return value;
}

// Round to nearest even; NaN stays NaN.
inline uint16_t float_to_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<uint16_t>(value == value ? rounded : 0x7fc0u);
}

// e^x with a relative error under 2e-7; 0 below -87, NaN for NaN. (Cephes' polynomial on [-ln2/2, ln2/2].)
inline float vector_exp(float x) {
  x = x < -87.3f ? -87.3f : x;
  x = x > 88.3f ? 88.3f : x;
  const float n = __builtin_rintf(x * 1.44269504088896341f);
  float r = __builtin_fmaf(n, -0.693359375f, x);
  r = __builtin_fmaf(n, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = __builtin_fmaf(p, r, 1.3981999507e-3f);
  p = __builtin_fmaf(p, r, 8.3334519073e-3f);
  p = __builtin_fmaf(p, r, 4.1665795894e-2f);
  p = __builtin_fmaf(p, r, 1.6666665459e-1f);
  p = __builtin_fmaf(p, r, 5.0000001201e-1f);
  p = __builtin_fmaf(p, r * r, r + 1.0f);
  const int32_t exponent = (static_cast<int32_t>(n) + 127) << 23;
  float power;
  memcpy(&power, &exponent, sizeof(power));
  return p * power;
}

}  // namespace
