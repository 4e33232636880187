// Transposes tiles of 16-bit values that lie in cache. Compiled for each x86-64 level. No torch here.
#pragma once

#include <stdint.h>

#include "trireme/device/simd_level.h"

namespace trireme {

struct TransposeTile {
  // from [rows, columns], rows `stride` apart -> to [columns, rows], rows `to_stride` apart. Values are
  // bits.
  void (*run)(const uint16_t* from, int64_t stride, int64_t rows, int64_t columns, uint16_t* to,
              int64_t to_stride);
};

TRIREME_SIMD_KERNEL(extern const TransposeTile kTransposeTile)

}  // namespace trireme
