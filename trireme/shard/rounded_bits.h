// Stochastic rounding of one element (stochastic_rounding.h), for the CPU's vectors and for a GPU's kernel.
#pragma once

#include <cstdint>

#include "trireme/base/splitmix64.h"
#include "trireme/kernels/narrow_floats.h"

namespace trireme {

constexpr uint64_t rounding_key(uint64_t seed, uint64_t stream) {
  return splitmix64(splitmix64(seed) ^ stream);
}

// The random numbers of elements [4 group, 4 group + 4): 16 bits each, the lowest bits first.
__attribute__((always_inline)) constexpr uint64_t rounding_word(uint64_t key, uint64_t group) {
  return splitmix64(key + group * kSplitmix64Step);
}

// Turns bits of fp32 and a random number into bits of bf16. Always inlined, as splitmix64 is.
__attribute__((always_inline)) TRIREME_HOST_DEVICE constexpr uint16_t rounded_bits(uint32_t bits,
                                                                                   uint16_t number) {
  const uint32_t sign = bits & 0x80000000U;
  const auto magnitude = static_cast<int32_t>(bits & 0x7fffffffU);  // signed: vectors compare those faster
  auto rounded = static_cast<int32_t>(static_cast<uint32_t>(magnitude) + number);
  rounded = rounded > 0x7f7fffff ? 0x7f7fffff : rounded;  // finite stays finite
  rounded = magnitude >= 0x7f800000 ? magnitude : rounded;
  rounded = magnitude > 0x7f800000 ? 0x7fc00000 : rounded;  // a NaN, whose upper half alone may be infinity
  return static_cast<uint16_t>((static_cast<uint32_t>(rounded) | sign) >> 16);
}

}  // namespace trireme
