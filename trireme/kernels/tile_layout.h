// Rearranges tiles of values that lie in cache: values are bits. Compiled for each x86-64 level. No torch
// here.
#pragma once

#include <stdint.h>

#include "trireme/device/simd_level.h"

namespace trireme {

struct TileLayout {
  // from [rows, columns], rows `stride` apart -> to [columns, rows], rows `to_stride` apart.
  void (*transpose_16)(const uint16_t* from, int64_t stride, int64_t rows, int64_t columns, uint16_t* to,
                       int64_t to_stride);
  void (*transpose_32)(const uint32_t* from, int64_t stride, int64_t rows, int64_t columns, uint32_t* to,
                       int64_t to_stride);
  // to[i] = pair of first[i] (low half) and second[i]
  void (*interleave)(const uint16_t* first, const uint16_t* second, int64_t columns, uint32_t* to);
};

TRIREME_SIMD_KERNEL(extern const TileLayout kTileLayout)

}  // namespace trireme
