// Rows of a tensor as the factors of small products (tile_gemm.h). Rows of `width` elements, `stride` apart,
// in the tensor's own type I, are widened or narrowed to E on the way.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "trireme/kernels/cpu_flash_tiles.h"
#include "trireme/kernels/tile_layout.h"

namespace trireme {

// Of the highest level that this processor runs.
inline const TileLayout& tile_layout() {
  static const TileLayout* const chosen =
      fastest(&simd_base::kTileLayout, &simd_v3::kTileLayout, &simd_v4::kTileLayout);
  return *chosen;
}

// Elements that a panel of `depth` rows takes; `depth` is even for bfloat16.
inline int64_t panel_size(int64_t depth) {
  return depth * kPanel;
}

template <typename E>
int64_t panel_index(int64_t k, int64_t n) {
  if constexpr (std::is_same_v<E, float>) return k * kPanel + n;
  return (k / 2) * 2 * kPanel + n * 2 + k % 2;
}

// -> [padded_rows, padded_width] row-major; what is beyond the source is zero.
template <typename E, typename I>
void pack_rows(const I* source, int64_t stride, int64_t rows, int64_t width, int64_t padded_rows,
               int64_t padded_width, E* out) {
  for (int64_t r = 0; r < padded_rows; ++r) {
    E* to = out + r * padded_width;
    const int64_t used = r < rows ? width : 0;
    if constexpr (std::is_same_v<E, I>)
      std::copy_n(source + r * stride, used, to);
    else
      for (int64_t d = 0; d < used; ++d) to[d] = static_cast<E>(source[r * stride + d]);
    std::fill(to + used, to + padded_width, E{});
  }
}

// [rows, width], rows `stride` apart -> [width, rows], rows `to_stride` apart.
template <typename E>
void transpose_rows(const E* source, int64_t stride, int64_t rows, int64_t width, E* out, int64_t to_stride) {
  static_assert(sizeof(E) == 2 || sizeof(E) == 4);
  if constexpr (sizeof(E) == 2)
    tile_layout().transpose_16(reinterpret_cast<const uint16_t*>(source), stride, rows, width,
                               reinterpret_cast<uint16_t*>(out), to_stride);
  else
    tile_layout().transpose_32(reinterpret_cast<const uint32_t*>(source), stride, rows, width,
                               reinterpret_cast<uint32_t*>(out), to_stride);
}

// One panel whose columns are 64 source rows: [depth, 64], depth >= width.
template <typename E, typename I>
void pack_columns_panel(const I* source, int64_t stride, int64_t rows, int64_t width, int64_t depth, E* out) {
  if (rows < kPanel || width < depth) std::fill_n(out, panel_size(depth), E{});
  constexpr int64_t kTogether = sizeof(uint32_t) / sizeof(E);  // a pair of bfloat16 moves as one word
  if constexpr (std::is_same_v<E, I>)
    if (width % kTogether == 0 && stride % kTogether == 0 &&
        reinterpret_cast<uintptr_t>(source) % sizeof(uint32_t) == 0)
      return tile_layout().transpose_32(reinterpret_cast<const uint32_t*>(source), stride / kTogether, rows,
                                        width / kTogether, reinterpret_cast<uint32_t*>(out), kPanel);
  constexpr int64_t kStep =
      8;  // source rows at a time: whole sectors of the panel are written, not single words
  for (int64_t n = 0; n < rows; n += kStep)
    for (int64_t k = 0; k < width; ++k)
      for (int64_t i = n; i < std::min(n + kStep, rows); ++i)
        out[panel_index<E>(k, i)] = static_cast<E>(source[i * stride + k]);
}

// 64 source rows as rows k0 .. k0 + 64 of panels of `depth` rows, one panel for each 64 of width.
template <typename E, typename I>
void pack_rows_panels(const I* source, int64_t stride, int64_t rows, int64_t width, int64_t k0, int64_t depth,
                      E* out) {
  for (int64_t d0 = 0; d0 < width; d0 += kPanel, out += panel_size(depth)) {
    const int64_t columns = std::min(kPanel, width - d0);
    if (rows < kPanel || columns < kPanel) std::fill_n(out + panel_size(k0), panel_size(kPanel), E{});
    int64_t k = 0;
    if constexpr (std::is_same_v<E, I> && sizeof(E) == 2)
      for (; k + 1 < rows; k += 2) {
        const auto* from = reinterpret_cast<const uint16_t*>(source + k * stride + d0);
        tile_layout().interleave(from, from + stride, columns,
                                 reinterpret_cast<uint32_t*>(out + panel_index<E>(k0 + k, 0)));
      }
    for (; k < rows; ++k) {
      const I* from = source + k * stride + d0;
      if (columns == kPanel)  // a constant length vectorises
        for (int64_t n = 0; n < kPanel; ++n) out[panel_index<E>(k0 + k, n)] = static_cast<E>(from[n]);
      else
        for (int64_t n = 0; n < columns; ++n) out[panel_index<E>(k0 + k, n)] = static_cast<E>(from[n]);
    }
  }
}

}  // namespace trireme
