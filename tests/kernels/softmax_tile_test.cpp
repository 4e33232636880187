// The sums of a tile's exponentials beside fp64: rounding to bf16 must not hide an error of theirs.
#include "trireme/kernels/softmax_tile.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <c10/util/BFloat16.h>
#include <gtest/gtest.h>

#include "trireme/device/processor.h"

namespace trireme::softmax_tile_test {
namespace {

std::vector<const TileMath*> tables_of_this_processor() {
  std::vector<const TileMath*> tables = {&simd_base::kTileMath};
  if (simd_level() >= SimdLevel::v3) tables.push_back(&simd_v3::kTileMath);
  if (simd_level() >= SimdLevel::v4) tables.push_back(&simd_v4::kTileMath);
  if (cpu_rounds_to_bf16()) tables.push_back(&simd_v4_bf16::kTileMath);
  return tables;
}

TEST(SoftmaxTile, sums_are_right_to_3e_6_of_what_is_rounded_to_bf16_and_to_1e_6_of_fp32) {
  constexpr int64_t kColumns = 64;
  constexpr float kScale = 0.7F;  // of exponents of two
  std::mt19937 generator(3);
  for (const TileMath* math : tables_of_this_processor())
    for (const bool rounded : {false, true})
      for (int row = 0; row < 50; ++row) {
        // All of a row but the largest lie at one distance from it, so that no error is averaged away.
        const float distance = std::uniform_real_distribution<float>(0, 1)(generator);
        std::vector<float> scores(kColumns, 2 - distance / kScale);
        scores[5] = 2;
        std::vector<uint16_t> out(kColumns);
        float most = -std::numeric_limits<float>::infinity(), sum = 0, rescale = 0;
        const double expected = 1 + (kColumns - 1) * std::exp2(static_cast<double>(scores[0] - 2) * kScale);
        math->softmax({scores.data(),
                       rounded ? out.data() : nullptr,
                       1,
                       kColumns,
                       kColumns,
                       nullptr,
                       nullptr,
                       {kScale * static_cast<float>(std::log(2.0))},
                       &most,
                       &sum,
                       &rescale});
        EXPECT_NEAR(sum / expected, 1, rounded ? 3e-6 : 1e-6) << math->instructions << ", " << distance;
      }
}

// One row of 64 scores, of which `first` come first and the rest are minus infinity, in units of log2.
struct OneRow {
  std::vector<float> scores = std::vector<float>(64, -std::numeric_limits<float>::infinity());
  std::vector<uint16_t> rounded = std::vector<uint16_t>(64);
  float most = -std::numeric_limits<float>::infinity(), sum = 0, rescale = 0;

  OneRow(const TileMath& math, bool rounds, const std::vector<float>& first, float most_before)
      : most(most_before) {
    std::copy(first.begin(), first.end(), scores.begin());
    math.softmax({scores.data(),
                  rounds ? rounded.data() : nullptr,
                  1,
                  64,
                  64,
                  nullptr,
                  nullptr,
                  {static_cast<float>(std::log(2.0))},
                  &most,
                  &sum,
                  &rescale});
    if (!rounds) return;
    for (int i = 0; i < 64; ++i) {
      const uint32_t bits = static_cast<uint32_t>(rounded[i]) << 16;
      std::memcpy(&scores[i], &bits, sizeof(bits));
    }
  }
};

TEST(SoftmaxTile, powers_are_exact_at_zero_and_nothing_below_the_normal_numbers) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const TileMath* math : tables_of_this_processor())
    for (const bool rounds : {false, true}) {
      const OneRow row(*math, rounds, {0, -1, -126, -126.5, -140, -200, -1e30F}, -infinity);
      const std::vector<float> expected{1, 0.5, std::ldexp(1.0F, -126), 0, 0, 0, 0, 0};
      for (size_t i = 0; i < expected.size(); ++i)
        EXPECT_FLOAT_EQ(row.scores[i], expected[i]) << math->instructions << ", " << i;
      EXPECT_EQ(row.most, 0);
      // A maximum that stays shrinks nothing, to the bit.
      EXPECT_EQ(OneRow(*math, rounds, {0, -3}, 0).rescale, 1) << math->instructions;
      EXPECT_EQ(OneRow(*math, rounds, {0, -3}, -2).rescale, 0.25) << math->instructions;
    }
}

TEST(SoftmaxTile, powers_in_fp32_are_right_to_their_rounding_and_none_of_it_is_in_common) {
  constexpr int kRows = 200, kPowers = 63;
  std::mt19937 generator(7);
  for (const TileMath* math : tables_of_this_processor()) {
    double errors = 0, squares = 0;
    for (int row = 0; row < kRows; ++row) {
      std::vector<float> exponents{0};
      for (int i = 0; i < kPowers; ++i)
        exponents.push_back(std::uniform_real_distribution<float>(-1, 0)(generator));
      const OneRow powers(*math, false, exponents, 0);
      for (int i = 1; i <= kPowers; ++i) {
        const double error = powers.scores[i] / std::exp2(static_cast<double>(exponents[i])) - 1;
        errors += error;
        squares += error * error;
      }
    }
    EXPECT_LT(std::sqrt(squares / (kRows * kPowers)), 4e-8) << math->instructions;
    EXPECT_LT(std::abs(errors / (kRows * kPowers)), 2e-9) << math->instructions;
  }
}

TEST(SoftmaxTile, what_is_no_number_stays_none) {
  const float nan = std::nanf("");
  for (const TileMath* math : tables_of_this_processor())
    for (const bool rounds : {false, true}) {
      const OneRow row(*math, rounds, {0, nan, -1}, -std::numeric_limits<float>::infinity());
      EXPECT_TRUE(std::isnan(row.sum) && std::isnan(row.scores[1])) << math->instructions;
    }
}

TEST(SoftmaxTile, rows_are_scaled_and_rounded_as_libtorch_rounds) {
  const float infinity = std::numeric_limits<float>::infinity();
  std::mt19937 generator(4);
  std::vector<float> values{0,   -0.0F,  infinity,        -infinity, std::nanf(""), 1 + 0x1p-8F,
                            3.F, 1e-40F, 1 + 3 * 0x1p-8F, 3.4e38F,   -1e-3F,        0x1p-126F};
  while (values.size() < 101) values.push_back(std::normal_distribution<float>()(generator));
  for (const TileMath* math : tables_of_this_processor())
    for (const float factor : {1.0F, 0.3F})
      for (const size_t count : {size_t{1}, size_t{16}, size_t{33}, values.size()}) {
        std::vector<uint16_t> out(values.size(), 7);
        math->scale_to_bf16(values.data(), factor, static_cast<int64_t>(count), out.data());
        for (size_t i = 0; i < values.size(); ++i)
          EXPECT_EQ(out[i], i < count ? c10::BFloat16(values[i] * factor).x : 7)
              << math->instructions << ", " << values[i] << " " << factor;
      }
}

}  // namespace
}  // namespace trireme::softmax_tile_test
