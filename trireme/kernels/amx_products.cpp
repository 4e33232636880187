#include "trireme/kernels/amx_products.h"

#include <array>
#include <immintrin.h>

#include "trireme/kernels/cpu_flash_tiles.h"

#define TRIREME_AMX [[gnu::target("amx-tile,amx-bf16"), gnu::noinline]]

namespace trireme {
namespace {

constexpr int64_t kTileRows = 16;                    // of a register
constexpr int64_t kTileRowBytes = 64;                // of a register's row
constexpr int64_t kTileFloats = kTileRowBytes / 4;   // of the result
constexpr int64_t kTileFactors = kTileRowBytes / 2;  // of the inner dimension

// What LDTILECFG reads (Intel's manual, volume 1, 18.2.1).
struct alignas(64) Configuration {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  std::array<uint8_t, 14> reserved{};
  std::array<uint16_t, 16> row_bytes{};
  std::array<uint8_t, 16> rows{};
};
static_assert(sizeof(Configuration) == 64);

constexpr Configuration kConfiguration = [] {
  Configuration all;
  for (int i = 0; i < 8; ++i) {
    all.row_bytes[i] = kTileRowBytes;
    all.rows[i] = kTileRows;
  }
  return all;
}();

}  // namespace

TRIREME_AMX void configure_amx() {
  _tile_loadconfig(&kConfiguration);
}

TRIREME_AMX void amx_product(int64_t m, int64_t n, int64_t k, const at::BFloat16* a, int64_t lda,
                             const at::BFloat16* panel, float* c, int64_t ldc, bool add) {
  asm volatile("" ::: "memory");  // GCC does not know that loading a register reads memory
  const int64_t a_bytes = lda * 2, panel_bytes = kPanel * 2 * 2, c_bytes = ldc * 4;
  for (int64_t j = 0; j < n; j += 2 * kTileFloats)
    for (int64_t i = 0; i < m; i += 2 * kTileRows) {
      float *upper = c + i * ldc + j, *lower = upper + kTileRows * ldc;
      if (add) {
        _tile_loadd(0, upper, c_bytes);
        _tile_loadd(1, upper + kTileFloats, c_bytes);
        _tile_loadd(2, lower, c_bytes);
        _tile_loadd(3, lower + kTileFloats, c_bytes);
      } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
      }
      const at::BFloat16 *a_upper = a + i * lda, *a_lower = a_upper + kTileRows * lda, *pairs = panel + j * 2;
      for (int64_t l = 0; l < k; l += kTileFactors) {
        _tile_loadd(4, a_upper + l, a_bytes);
        _tile_loadd(6, pairs + l * kPanel, panel_bytes);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, pairs + l * kPanel + 2 * kTileFloats, panel_bytes);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a_lower + l, a_bytes);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
      _tile_stored(0, upper, c_bytes);
      _tile_stored(1, upper + kTileFloats, c_bytes);
      _tile_stored(2, lower, c_bytes);
      _tile_stored(3, lower + kTileFloats, c_bytes);
    }
}

}  // namespace trireme
