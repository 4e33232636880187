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

// Bits of fp32, of a number or of a vector of them, to the nearest bf16, ties to even. A NaN may become
// another number.
template <typename Words>
inline Words bf16_bits(Words bits) {
  return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}

// NaN stays NaN.
inline uint16_t float_to_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return static_cast<uint16_t>(value == value ? bf16_bits(bits) : 0x7fc0u);
}

// Integer selects instead of branches, so that loops vectorise. The float subtraction starts from bits and
// ends in bits, so a compiler that may reorder sums cannot merge it with another sum.
inline float fp16_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7fffu) << 13;
  const uint32_t exponent = magnitude & 0x0f800000u;
  constexpr float kSmallestNormal = 6.103515625e-5f;  // 2^-14
  const uint32_t shifted = magnitude + 0x38800000u;   // of a denormal: 2^-14 + its value
  float denormal;
  memcpy(&denormal, &shifted, sizeof(denormal));
  denormal -= kSmallestNormal;
  uint32_t denormal_bits;
  memcpy(&denormal_bits, &denormal, sizeof(denormal));
  uint32_t wide = exponent == 0 ? denormal_bits : magnitude + 0x38000000u;
  wide = exponent == 0x0f800000u ? magnitude + 0x70000000u : wide;  // infinity and NaN
  wide |= sign;
  float value;
  memcpy(&value, &wide, sizeof(value));
  return value;
}

// Round to nearest even; from 65520 on infinity, below 2^-14 denormal; NaN stays NaN.
inline uint16_t float_to_fp16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  const uint32_t magnitude = bits & 0x7fffffffu;
  const int32_t order = static_cast<int32_t>(magnitude);  // signed: vectors compare signed numbers faster
  float denormal;
  memcpy(&denormal, &magnitude, sizeof(denormal));
  denormal += 0.5f;  // the last bit of 0.5 is fp16's smallest denormal, 2^-24
  uint32_t denormal_bits;
  memcpy(&denormal_bits, &denormal, sizeof(denormal));
  const uint32_t normal = (magnitude + 0xc8000fffu + ((magnitude >> 13) & 1u)) >> 13;
  uint32_t narrow = order < 0x38800000 ? denormal_bits - 0x3f000000u : normal;
  narrow = order >= 0x47800000 ? 0x7c00u : narrow;
  narrow = order > 0x7f800000 ? 0x7e00u : narrow;
  return static_cast<uint16_t>(narrow | ((bits >> 16) & 0x8000u));
}

// e^x with a relative error under 2e-7; about 1e-38 below -87.3, NaN for NaN. (Cephes' polynomial on
// [-ln2/2, ln2/2].)
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
