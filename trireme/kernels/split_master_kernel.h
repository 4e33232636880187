// The loops behind split_master.cpp, one for each x86-64 level. Halves are those of master_bits.h.
#pragma once

#include <stdint.h>

#include "trireme/device/simd_level.h"

namespace trireme {

TRIREME_SIMD_KERNEL(void round_masters(const uint32_t* masters, uint16_t* values, int64_t count);
                    void split_masters(const uint32_t* masters, uint16_t* values, uint16_t* low,
                                       int64_t count);
                    void join_masters(const uint16_t* values, const uint16_t* low, uint32_t* masters,
                                      int64_t count))

}  // namespace trireme
