// The sums of a tile's exponentials beside fp64: rounding to bf16 must not hide an error of theirs.
#include "trireme/kernels/softmax_tile.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

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

}  // namespace
}  // namespace trireme::softmax_tile_test
