#include "trireme/kernels/tile_gemm.h"

#include <array>

#include <ATen/native/CPUBlas.h>

#include "trireme/device/processor.h"

namespace trireme {

void panel_gemm(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* panel, float* c,
                int64_t ldc, bool add, Bf16Units /*units*/) {
  at::native::cpublas::brgemm(m, n, k, lda, kPanel, ldc, add, a, panel, c);
}

void panel_gemm(int64_t m, int64_t n, int64_t k, const at::BFloat16* a, int64_t lda,
                const at::BFloat16* panel, float* c, int64_t ldc, bool add, Bf16Units units) {
  if (units != Bf16Units::loops) {
    at::native::cpublas::brgemm(m, n, k, lda, kPanel, ldc, add, a, panel, c, /*is_vnni=*/true);
    return;
  }
  for (int64_t i = 0; i < m; ++i) {
    float* row = c + i * ldc;
    if (!add) std::fill_n(row, n, 0.0f);
    for (int64_t l = 0; l < k; ++l) {
      const auto factor = static_cast<float>(a[i * lda + l]);
      for (int64_t j = 0; j < n; ++j)
        row[j] += factor * static_cast<float>(panel[panel_index<at::BFloat16>(l, j)]);
    }
  }
}

void release_tiles(Bf16Units units) {
  if (units == Bf16Units::amx) at::native::cpublas::brgemm_release();
}

std::optional<Bf16Units> processor_bf16_units() {
  // Without instructions of its own the processor would run these kernels too, slower than in fp32.
  if (!cpu_has_bf16_matmul()) return std::nullopt;
  // `could_pack` is libtorch's own question for AMX.
  const Bf16Units units =
      at::native::cpublas::could_pack(at::kBFloat16) ? Bf16Units::amx : Bf16Units::avx512_bf16;
  // The panel layout is a convention between libtorch and oneDNN: a product in both makes sure that it holds.
  constexpr int64_t kRows = 64, kDepth = 80;
  std::array<at::BFloat16, kRows * kDepth> a{};
  std::array<at::BFloat16, kDepth * kPanel> panel{};
  for (size_t i = 0; i < a.size(); ++i)
    a[i] = static_cast<at::BFloat16>(static_cast<float>(i * 7 % 13) - 6.0f);
  for (size_t i = 0; i < panel.size(); ++i)
    panel[i] = static_cast<at::BFloat16>(static_cast<float>(i * 5 % 11) - 5.0f);
  bool right = true;
  for (const int64_t columns : {int64_t{16}, kPanel}) {
    std::array<float, kRows * kPanel> plain{};
    std::array<float, kRows * kPanel> tiles{};
    panel_gemm(kRows, columns, kDepth, a.data(), kDepth, panel.data(), plain.data(), kPanel, false,
               Bf16Units::loops);
    try {
      panel_gemm(kRows, columns, kDepth, a.data(), kDepth, panel.data(), tiles.data(), kPanel, false, units);
    } catch (const std::exception&) {  // these kernels are switched off: an error of libtorch, or of oneDNN
      return std::nullopt;
    }
    release_tiles(units);
    right = right && plain == tiles;  // whole numbers, so exact
  }
  return right ? std::optional(units) : std::nullopt;
}

}  // namespace trireme
