#include "trireme/kernels/tile_gemm.h"

#include <algorithm>
#include <array>
#include <exception>
#include <utility>

#include <ATen/native/CPUBlas.h>

#include "trireme/device/processor.h"
#include "trireme/kernels/amx_products.h"
#include "trireme/kernels/pack_panels.h"

namespace trireme {
namespace {

void multiply_in_loops(int64_t m, int64_t n, int64_t k, const at::BFloat16* a, int64_t lda,
                       const at::BFloat16* panel, float* c, int64_t ldc, bool add) {
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

}  // namespace

void PanelProducts::release() {
  if (registers_ != Registers::free) at::native::cpublas::brgemm_release();
  registers_ = Registers::free;
}

void PanelProducts::run(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* panel,
                        float* c, int64_t ldc, bool add) {
  at::native::cpublas::brgemm(m, n, k, lda, kPanel, ldc, add, a, panel, c);
}

void PanelProducts::run(int64_t m, int64_t n, int64_t k, const at::BFloat16* a, int64_t lda,
                        const at::BFloat16* panel, float* c, int64_t ldc, bool add) {
  if (units_ == Bf16Units::loops) return multiply_in_loops(m, n, k, a, lda, panel, c, ldc, add);
  const bool ours = units_ == Bf16Units::amx && amx_multiplies(m, n, k);
  if (units_ == Bf16Units::amx) {
    const Registers needed = ours ? Registers::ours : Registers::of_libtorch;
    if (registers_ != needed) {
      release();
      if (ours) configure_amx();
      registers_ = needed;
    }
  }
  if (ours)
    amx_product(m, n, k, a, lda, panel, c, ldc, add);
  else
    at::native::cpublas::brgemm(m, n, k, lda, kPanel, ldc, add, a, panel, c, /*is_vnni=*/true);
}

std::optional<Bf16Units> processor_bf16_units() {
  // Without instructions of its own the processor would run these kernels too, slower than in fp32.
  if (!cpu_has_bf16_matmul()) return std::nullopt;
  // `could_pack` is libtorch's own question for AMX.
  const Bf16Units units =
      at::native::cpublas::could_pack(at::kBFloat16) ? Bf16Units::amx : Bf16Units::avx512_bf16;
  // The panel layout is a convention between libtorch and oneDNN: products in both make sure that it holds.
  // The first size is oneDNN's also on AMX.
  constexpr int64_t kRows = 64, kMost_depth = 96;
  std::array<at::BFloat16, kRows * kMost_depth> a{};
  std::array<at::BFloat16, kMost_depth * kPanel> panel{};
  for (size_t i = 0; i < a.size(); ++i)
    a[i] = static_cast<at::BFloat16>(static_cast<float>(i * 7 % 13) - 6.0f);
  for (size_t i = 0; i < panel.size(); ++i)
    panel[i] = static_cast<at::BFloat16>(static_cast<float>(i * 5 % 11) - 5.0f);
  bool right = true;
  try {
    for (const auto& [columns, depth] : {std::pair<int64_t, int64_t>{16, 80}, {kPanel, 80}, {kPanel, 96}}) {
      std::array<float, kRows * kPanel> plain{};
      std::array<float, kRows * kPanel> tiles{};
      PanelProducts(Bf16Units::loops)
          .run(kRows, columns, depth, a.data(), depth, panel.data(), plain.data(), kPanel, false);
      PanelProducts(units).run(kRows, columns, depth, a.data(), depth, panel.data(), tiles.data(), kPanel,
                               false);
      right = right && plain == tiles;  // whole numbers, so exact
    }
  } catch (const std::exception&) {  // these kernels are switched off: an error of libtorch, or of oneDNN
    return std::nullopt;
  }
  return right ? std::optional(units) : std::nullopt;
}

}  // namespace trireme
