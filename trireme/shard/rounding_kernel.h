// The loop behind stochastic_rounding.cpp, one for each x86-64 level.
#pragma once

#include <stdint.h>

#include "trireme/device/simd_level.h"

namespace trireme {

// Bits of fp32 [count] -> bits of bf16 [count]; `from` is element `first_element` of what has `key`.
TRIREME_SIMD_KERNEL(void round_block(const uint32_t* from, uint16_t* to, int64_t count, uint64_t key,
                                     uint64_t first_element))

}  // namespace trireme
