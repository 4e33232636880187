// Small matrix products on tiles that lie in cache, through libtorch's block kernels (oneDNN brgemm: AVX2 and
// AVX-512, and for bfloat16 AMX or AVX512-BF16). A is row-major. B is cut into panels of 64 columns, as these
// kernels want it:
//
//   float      [K, 64]
//   bfloat16   [K / 2, 64, 2]     rows interleaved by twos ("VNNI"), K even
//
// E is the element type of A and B; sums are fp32.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <type_traits>

#include <ATen/ATen.h>

#include "trireme/kernels/cpu_flash_tiles.h"

namespace trireme {

// Elements that a panel of `depth` rows takes; `depth` is even for bfloat16.
inline int64_t panel_size(int64_t depth) {
  return depth * kPanel;
}

template <typename E>
int64_t panel_index(int64_t k, int64_t n) {
  if constexpr (std::is_same_v<E, float>) return k * kPanel + n;
  return (k / 2) * 2 * kPanel + n * 2 + k % 2;
}

// How bfloat16 products are computed: by the processor's own instructions for them, or by plain loops over
// the same panels, which is slow and serves tests of the packing where the processor has none.
enum class Bf16Units { amx, avx512_bf16, loops };

// The instructions that libtorch's block kernels use here; none where the processor has none, or where a
// small product through them does not give the right numbers.
std::optional<Bf16Units> processor_bf16_units();

// c[M, N] (+)= a[M, K] panel[K, N], N at most 64.
void panel_gemm(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* panel, float* c,
                int64_t ldc, bool add, Bf16Units units);
void panel_gemm(int64_t m, int64_t n, int64_t k, const at::BFloat16* a, int64_t lda,
                const at::BFloat16* panel, float* c, int64_t ldc, bool add, Bf16Units units);

// Every thread that multiplied bfloat16 tiles calls this when it is done: AMX state, if any, is given back.
void release_tiles(Bf16Units units);
template <typename E>
void release_tiles_of(Bf16Units units) {
  if constexpr (!std::is_same_v<E, float>) release_tiles(units);
}

// Rows of `width` elements, `stride` apart, in the tensor's own type I, widened or narrowed to E on the way.

// -> [padded_rows, padded_width] row-major; what is beyond the source is zero.
template <typename E, typename I>
void pack_rows(const I* source, int64_t stride, int64_t rows, int64_t width, int64_t padded_rows,
               int64_t padded_width, E* out) {
  for (int64_t r = 0; r < padded_rows; ++r) {
    E* to = out + r * padded_width;
    const int64_t used = r < rows ? width : 0;
    for (int64_t d = 0; d < used; ++d) to[d] = static_cast<E>(source[r * stride + d]);
    std::fill(to + used, to + padded_width, E{});
  }
}

// One panel whose columns are 64 source rows: [depth, 64], depth >= width.
template <typename E, typename I>
void pack_columns_panel(const I* source, int64_t stride, int64_t rows, int64_t width, int64_t depth, E* out) {
  if (rows < kPanel || width < depth) std::fill_n(out, panel_size(depth), E{});
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
    for (int64_t k = 0; k < rows; ++k) {
      const I* from = source + k * stride + d0;
      if (columns == kPanel)  // a constant length vectorises
        for (int64_t n = 0; n < kPanel; ++n) out[panel_index<E>(k0 + k, n)] = static_cast<E>(from[n]);
      else
        for (int64_t n = 0; n < columns; ++n) out[panel_index<E>(k0 + k, n)] = static_cast<E>(from[n]);
    }
  }
}

}  // namespace trireme
