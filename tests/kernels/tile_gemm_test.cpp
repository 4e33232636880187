// Products of tiles against plain sums of whole numbers, which every unit gives exactly; and how their
// factors are packed.
#include "trireme/kernels/tile_gemm.h"

#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "trireme/device/simd_level.h"
#include "trireme/kernels/amx_products.h"
#include "trireme/kernels/pack_panels.h"

namespace trireme::tile_gemm_test {
namespace {

struct Sizes {
  int64_t m, n, k;
};
// Of the whole registers of AMX, and of what is left to libtorch.
const std::vector<Sizes> kWhole = {{32, 32, 32},  {64, 64, 64},   {192, 64, 64},
                                   {64, 32, 192}, {128, 64, 512}, {96, 64, 96}};
const std::vector<Sizes> kOther = {{16, 64, 64}, {64, 16, 64}, {64, 64, 80}, {1, 1, 2}, {33, 33, 34}};

at::Tensor whole_numbers(int64_t rows, int64_t columns) {
  return at::randint(-8, 9, {rows, columns}).to(at::kFloat);
}

// b [K, N] -> a panel, by its definition.
template <typename E>
std::vector<E> panel_of(const at::Tensor& b) {
  std::vector<E> panel(panel_size(b.size(0)), static_cast<E>(0));
  const auto values = b.accessor<float, 2>();
  for (int64_t k = 0; k < b.size(0); ++k)
    for (int64_t n = 0; n < b.size(1); ++n) panel[panel_index<E>(k, n)] = static_cast<E>(values[k][n]);
  return panel;
}

// One product whose rows of a and c lie `gap` elements apart, beside what lies between and after them.
void expect_exact(PanelProducts& products, at::ScalarType dtype, const Sizes& sizes, bool add, int64_t gap) {
  const auto& [m, n, k] = sizes;
  const at::Tensor a = whole_numbers(m, k + gap), b = whole_numbers(k, n), before = whole_numbers(m, n + gap);
  at::Tensor c = before.clone();
  if (dtype == at::kFloat) {
    products.run(m, n, k, a.const_data_ptr<float>(), k + gap, panel_of<float>(b).data(),
                 c.mutable_data_ptr<float>(), n + gap, add);
  } else {
    const at::Tensor narrow = a.to(at::kBFloat16);
    products.run(m, n, k, narrow.const_data_ptr<at::BFloat16>(), k + gap, panel_of<at::BFloat16>(b).data(),
                 c.mutable_data_ptr<float>(), n + gap, add);
  }
  at::Tensor expected = before.clone();
  const at::Tensor product = at::mm(a.narrow(1, 0, k).to(at::kDouble), b.to(at::kDouble)).to(at::kFloat);
  expected.narrow(1, 0, n).copy_(add ? before.narrow(1, 0, n) + product : product);
  EXPECT_TRUE(at::equal(c, expected)) << m << " " << n << " " << k << (add ? " added" : "");
}

std::vector<Bf16Units> units_here() {
  std::vector<Bf16Units> all{Bf16Units::loops};
  if (const auto units = processor_bf16_units()) all.push_back(*units);
  return all;
}

TEST(PanelProducts, are_exact_in_whole_numbers) {
  for (const Bf16Units units : units_here()) {
    PanelProducts products(units);
    for (const bool add : {false, true})
      for (const int64_t gap : {0, 8})
        for (const auto* sizes : {&kWhole, &kOther})
          for (const Sizes& one : *sizes) {
            expect_exact(products, at::kBFloat16, one, add, gap);
            expect_exact(products, at::kFloat, one, add, gap);
          }
  }
}

TEST(PanelProducts, of_ours_and_of_libtorch_take_turns) {
  for (const Bf16Units units : units_here())
    for (int round = 0; round < 3; ++round) {
      {
        PanelProducts products(units);
        for (int turn = 0; turn < 3; ++turn) {
          expect_exact(products, at::kBFloat16, kWhole[turn], turn == 1, 0);
          expect_exact(products, at::kBFloat16, kOther[0], false, 0);  // the same of libtorch's each time
        }
        expect_exact(products, at::kBFloat16, kWhole[round], true, 0);
      }
      const at::Tensor a = whole_numbers(70, 64);
      EXPECT_TRUE(at::equal(at::mm(a.to(at::kBFloat16), a.t().to(at::kBFloat16)),
                            at::mm(a.to(at::kDouble), a.t().to(at::kDouble)).to(at::kBFloat16)));
    }
}

TEST(PanelProducts, of_AMX_have_the_bits_of_libtorch) {
  if (processor_bf16_units() != Bf16Units::amx) GTEST_SKIP() << "this processor has no AMX";
  for (const auto& [m, n, k] : kWhole) {
    ASSERT_TRUE(amx_multiplies(m, n, k));
    const at::Tensor a = at::randn({m, k}).to(at::kBFloat16), b = at::randn({k, n});
    const auto panel = panel_of<at::BFloat16>(b);
    at::Tensor ours = at::randn({m, n});
    at::Tensor in_parts = ours.clone();
    PanelProducts products(Bf16Units::amx);
    products.run(m, n, k, a.const_data_ptr<at::BFloat16>(), k, panel.data(), ours.mutable_data_ptr<float>(),
                 n, true);
    // Sixteen rows are no whole block: libtorch multiplies them.
    for (int64_t row = 0; row < m; row += 16) {
      ASSERT_FALSE(amx_multiplies(16, n, k));
      products.run(16, n, k, a[row].const_data_ptr<at::BFloat16>(), k, panel.data(),
                   in_parts[row].mutable_data_ptr<float>(), n, true);
    }
    EXPECT_TRUE(at::equal(ours, in_parts)) << m << " " << n << " " << k;
  }
}

std::vector<const TileLayout*> layouts_here() {
  std::vector<const TileLayout*> levels{&simd_base::kTileLayout};
  if (simd_level() >= SimdLevel::v3) levels.push_back(&simd_v3::kTileLayout);
  if (simd_level() >= SimdLevel::v4) levels.push_back(&simd_v4::kTileLayout);
  return levels;
}

template <typename Bits, typename Signed, typename Transpose>
void expect_transposed(at::ScalarType dtype, const Transpose& transpose) {
  for (const auto& [rows, columns] :
       {std::pair<int64_t, int64_t>{1, 1}, {32, 32}, {64, 96}, {33, 31}, {70, 100}, {16, 48}}) {
    const at::Tensor from = at::randint(-32768, 32767, {rows, columns + 3}, dtype);
    const at::Tensor to = at::zeros({columns, rows + 2}, dtype);
    transpose(reinterpret_cast<const Bits*>(from.const_data_ptr<Signed>()), columns + 3, rows, columns,
              reinterpret_cast<Bits*>(to.mutable_data_ptr<Signed>()), rows + 2);
    EXPECT_TRUE(at::equal(to.narrow(1, 0, rows), from.narrow(1, 0, columns).t())) << rows << " " << columns;
    EXPECT_TRUE(at::equal(to.narrow(1, rows, 2), at::zeros({columns, 2}, dtype)));
  }
}

TEST(TileLayout, of_every_level_that_the_processor_runs_transposes_and_interleaves) {
  for (const TileLayout* level : layouts_here()) {
    expect_transposed<uint16_t, int16_t>(at::kShort, level->transpose_16);
    expect_transposed<uint32_t, int32_t>(at::kInt, level->transpose_32);
    for (const int64_t columns : {1, 31, 64, 100}) {
      const at::Tensor rows = at::randint(-32768, 32767, {2, columns}, at::kShort);
      const at::Tensor pairs = at::zeros({columns + 1}, at::kInt);
      const auto* first = reinterpret_cast<const uint16_t*>(rows.const_data_ptr<int16_t>());
      level->interleave(first, first + columns, columns,
                        reinterpret_cast<uint32_t*>(pairs.mutable_data_ptr<int32_t>()));
      EXPECT_TRUE(at::equal(pairs.narrow(0, 0, columns).view(at::kShort).view({columns, 2}), rows.t()));
      EXPECT_EQ(pairs[columns].item<int32_t>(), 0);
    }
  }
}

// Every size at which a panel is cut, for rows that lie `gap` apart; odd ones take the plain loops.
template <typename E, typename I>
void expect_packed(int64_t rows, int64_t width, int64_t gap, int64_t first) {
  const at::ScalarType dtype = c10::CppTypeToScalarType<I>::value;
  const at::Tensor source = at::randn({rows, first + width + gap}).to(dtype).narrow(1, first, width);
  const int64_t stride = source.stride(0);
  const int64_t depth = width + width % 2;
  const at::Tensor wide = source.to(at::kFloat);
  const auto values = wide.accessor<float, 2>();
  const auto at_row = [&](int64_t r, int64_t d) { return static_cast<E>(values[r][d]); };
  const I* from = source.const_data_ptr<I>();

  std::vector<E> columns(panel_size(depth), static_cast<E>(7));
  pack_columns_panel(from, stride, rows, width, depth, columns.data());
  for (int64_t d = 0; d < depth; ++d)
    for (int64_t r = 0; r < kPanel; ++r) {
      const E expected = r < rows && d < width ? at_row(r, d) : E{};
      ASSERT_EQ(columns[panel_index<E>(d, r)], expected) << rows << " " << width << " " << gap;
    }

  const int64_t panels = (width + kPanel - 1) / kPanel;
  std::vector<E> across(panels * panel_size(2 * kPanel), static_cast<E>(7));
  pack_rows_panels(from, stride, rows, width, kPanel, 2 * kPanel, across.data());
  for (int64_t r = 0; r < kPanel; ++r)
    for (int64_t d = 0; d < panels * kPanel; ++d) {
      const E expected = r < rows && d < width ? at_row(r, d) : E{};
      const E got = across[d / kPanel * panel_size(2 * kPanel) + panel_index<E>(kPanel + r, d % kPanel)];
      ASSERT_EQ(got, expected) << rows << " " << width << " " << gap;
    }
}

TEST(PackPanels, puts_every_element_at_its_index_and_zeros_beyond) {
  for (const int64_t rows : {64, 63, 17, 1})
    for (const int64_t width : {64, 96, 33, 2, 1})
      for (const auto& [first, gap] : {std::pair<int64_t, int64_t>{0, 0}, {0, 1}, {0, 6}, {1, 1}}) {
        expect_packed<float, float>(rows, width, gap, first);
        expect_packed<at::BFloat16, at::BFloat16>(rows, width, gap, first);
        expect_packed<float, at::BFloat16>(rows, width, gap, first);
        expect_packed<float, at::Half>(rows, width, gap, first);
      }
}

}  // namespace
}  // namespace trireme::tile_gemm_test
