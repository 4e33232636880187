// An fp32 master as two halves of 16 bits, so that memory holds each of its bits once: the bf16 value that
// compute reads, and the low bits that this value lacks.
//
//   value = upper half of (bits + 0x8000)       the nearest; of two as near, that of the larger magnitude
//   low   = lower half of bits
//   bits  = (value - low's highest bit), low
//
// Of two as near, IEEE 754 takes the even one. Then an even value would have 65,537 masters, and 16 bits
// could not tell which. A NaN whose sum would overflow keeps its upper half.
#pragma once

#include <stdint.h>

#include "trireme/kernels/narrow_floats.h"

namespace trireme {

// The bits of the bf16 value. Always inlined: what is compiled for several x86-64 levels may leave no copy.
__attribute__((always_inline)) TRIREME_HOST_DEVICE constexpr uint16_t value_of_master(uint32_t bits) {
  const uint32_t high = bits >> 16, up = (bits >> 15) & 1;
  return static_cast<uint16_t>(high + ((high & 0x7fffU) == 0x7fffU ? 0 : up));
}
__attribute__((always_inline)) TRIREME_HOST_DEVICE constexpr uint16_t low_of_master(uint32_t bits) {
  return static_cast<uint16_t>(bits);
}
__attribute__((always_inline)) TRIREME_HOST_DEVICE constexpr uint32_t master_of(uint16_t value,
                                                                                uint16_t low) {
  const uint32_t wide = value, up = static_cast<uint32_t>(low) >> 15;
  return ((wide - ((wide & 0x7fffU) == 0x7fffU ? 0 : up)) << 16) | low;
}

}  // namespace trireme
