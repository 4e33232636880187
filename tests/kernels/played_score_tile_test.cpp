// Attention's element-wise half on a played GPU: its definition in fp64 over several tiles of a row, for every band, with
// and without a cap, and the bytes that it moves.
#include <algorithm>

#include "trireme/kernels/score_tile_kernel.h"

#include "tests/kernels/played_floats.h"

namespace trireme::played_score_tile_test {
namespace {

using played::Array;
using played::Gpu;
using played::number_of;
using testing::normal_values;

constexpr double kInfinity = INFINITY;
constexpr float kScale = 0.3F;

bool seen(const TileBand& band, int64_t query, int64_t key) {
  return key < band.keys && (!band.has_begin || key >= band.begin + query) &&
         (!band.has_end || key < band.end + query);
}
double score_of(float s, double cap) {
  const double scaled = static_cast<double>(kScale) * s;
  return cap > 0 ? cap * std::tanh(scaled / cap) : scaled;
}
double slope_of(float s, double cap) {
  return kScale * (cap > 0 ? std::pow(std::cosh(kScale * static_cast<double>(s) / cap), -2) : 1);
}
// Of a value that is computed in fp32 from an exponent of so large a score and rounded to X.
template <typename X>
double tolerance(double value, double largest_score) {
  return std::abs(value) * (testing::kHalfUnit<X> + 1e-6 * (2 + largest_score)) + 1e-7 +
         testing::kLeastHalfUnit<X>;
}

struct TileCase {
  int64_t heads, rows_of_head;
  std::vector<TileBand> tiles;  // of the same rows, one after another
  float cap = 0;
};

std::vector<TileCase> cases() {
  const auto whole = [](int64_t keys) { return TileBand{.keys = keys}; };
  // Causal: the diagonal of row 0 is at key `d` of the tile; a window: `w` keys on its left.
  const auto causal = [](int64_t keys, int64_t d) {
    return TileBand{.keys = keys, .has_end = true, .end = d + 1};
  };
  const auto window = [](int64_t keys, int64_t d, int64_t w) {
    return TileBand{.keys = keys, .has_begin = true, .has_end = true, .begin = d - w, .end = d + 1};
  };
  std::vector<TileCase> all;
  for (const float cap : {0.0F, 1.5F, 50.0F}) {
    all.push_back({2, 3, {whole(8)}, cap});
    all.push_back({1, 5, {whole(61), whole(200)}, cap});
    all.push_back({3, 4, {causal(64, 60), causal(40, -4)}, cap});
    all.push_back({2, 6, {window(24, 3, 5), window(24, -21, 5)}, cap});
    all.push_back(
        {1, 3, {causal(16, -2), window(16, 40, 10), whole(16)}, cap});  // rows and tiles without keys
    all.push_back({1, 2, {whole(2041), causal(2048, 2047)}, cap});
  }
  return all;
}

template <typename X>
class ScoreTileKernel : public ::testing::Test {};
TYPED_TEST_SUITE(ScoreTileKernel, testing::PlayedFloats);

ScoreTile tile_of(const TileCase& c, const TileBand& band) {
  return {.rows = c.heads * c.rows_of_head,
          .rows_of_head = c.rows_of_head,
          .row_keys = (band.keys + 7) / 8 * 8,
          .band = band,
          .scale = kScale,
          .cap = c.cap};
}

TYPED_TEST(ScoreTileKernel, forward_is_the_running_softmax_of_what_a_row_sees) {
  using X = TypeParam;
  unsigned seed = 1;
  for (const TileCase& c : cases()) {
    SCOPED_TRACE(::testing::Message()
                 << "heads " << c.heads << " rows " << c.rows_of_head << " cap " << c.cap);
    const int64_t rows = c.heads * c.rows_of_head;
    Gpu gpu;
    const Array<float> max = gpu.array(std::vector<float>(rows, -INFINITY)),
                       sum = gpu.array(std::vector<float>(rows, kNoKeysYet)),
                       rescale = gpu.array<float>(rows);
    std::vector<double> most(rows, -kInfinity), total(rows, kNoKeysYet);
    for (const TileBand& band : c.tiles) {
      const ScoreTile tile = tile_of(c, band);
      const std::vector<float> scores = normal_values<float>(rows * tile.row_keys, seed++, 6);
      const Array<float> given = gpu.array(scores);
      const Array<X> p = gpu.array<X>(rows * tile.row_keys);
      launch_softmax_tile(tile, number_of<X>(), given.data(), p.data(),
                          {max.data(), sum.data(), rescale.data()}, nullptr);
      const std::vector<X> got = p.values();
      const std::vector<float> got_max = max.values(), got_sum = sum.values(), got_rescale = rescale.values();
      for (int64_t row = 0; row < rows; ++row) {
        const auto at = [&](int64_t key) { return scores[row * tile.row_keys + key]; };
        const double before = most[row];
        bool any = false;
        for (int64_t key = 0; key < tile.row_keys; ++key)
          if (seen(band, row % c.rows_of_head, key)) {
            any = true;
            most[row] = std::max(most[row], score_of(at(key), c.cap));
          }
        const double reference = most[row] == -kInfinity ? 0 : most[row],
                     shrink = std::exp(before - reference);
        double of_tile = 0;
        for (int64_t key = 0; key < tile.row_keys; ++key) {
          const double expected =
              seen(band, row % c.rows_of_head, key) ? std::exp(score_of(at(key), c.cap) - reference) : 0;
          of_tile += expected;
          ASSERT_NEAR(widened(got[row * tile.row_keys + key]), expected,
                      tolerance<X>(expected, std::abs(reference)))
              << "row " << row << " key " << key;
        }
        if (any) total[row] = std::max(total[row], 0.0) * shrink + of_tile;
        EXPECT_NEAR(got_rescale[row], shrink, 1e-5);
        EXPECT_NEAR(got_sum[row], total[row], 2e-5 * std::abs(total[row])) << "row " << row;
        if (most[row] == -kInfinity)
          EXPECT_EQ(got_max[row], -kInfinity);
        else
          EXPECT_NEAR(got_max[row], most[row], 1e-5 * (1 + std::abs(most[row])));
      }
    }
  }
}

TYPED_TEST(ScoreTileKernel, backward_is_its_derivative_and_zero_of_what_a_row_does_not_see) {
  using X = TypeParam;
  unsigned seed = 100;
  for (const TileCase& c : cases())
    for (const TileBand& band : c.tiles) {
      SCOPED_TRACE(::testing::Message() << "keys " << band.keys << " cap " << c.cap);
      const ScoreTile tile = tile_of(c, band);
      const int64_t count = tile.rows * tile.row_keys;
      std::vector<float> scores = normal_values<float>(count, seed++, 6),
                         d_p = normal_values<float>(count, seed++);
      const std::vector<float> lse(tile.rows, 3.5F), delta = normal_values<float>(tile.rows, seed++);
      for (int64_t i = 0; i < count; ++i)  // what pads a row may be anything
        if (i % tile.row_keys >= band.keys) scores[i] = d_p[i] = NAN;
      Gpu gpu;
      const Array<float> given = gpu.array(scores), given_gradients = gpu.array(d_p);
      const Array<X> p = gpu.array<X>(count), d_s = gpu.array<X>(count);
      launch_gradient_tile(tile, number_of<X>(), given.data(), given_gradients.data(), p.data(), d_s.data(),
                           gpu.array(lse).data(), gpu.array(delta).data(), nullptr);
      const std::vector<X> got_p = p.values(), got_ds = d_s.values();
      for (int64_t i = 0; i < count; ++i) {
        const int64_t row = i / tile.row_keys;
        const bool visible = seen(band, row % c.rows_of_head, i % tile.row_keys);
        const double expected = visible ? std::exp(score_of(scores[i], c.cap) - lse[row]) : 0;
        ASSERT_NEAR(widened(got_p[i]), expected, tolerance<X>(expected, 10)) << i;
        const double terms = expected * (std::abs(d_p[i]) + std::abs(delta[row])) * kScale;
        const double expected_ds =
            visible ? expected * (d_p[i] - delta[row]) * slope_of(scores[i], c.cap) : 0;
        // Near the cap the slope is a difference of two numbers near 1.
        ASSERT_NEAR(widened(got_ds[i]), expected_ds,
                    visible ? tolerance<X>(expected_ds, 10) + 2e-5 * terms : 0)
            << i;
      }
    }
}

TEST(ScoreTileKernelInFp32, gives_the_same_in_the_place_of_its_scores) {
  constexpr int64_t kRows = 3, kKeys = 40;
  const ScoreTile tile{kRows, kRows, kKeys, {.keys = 37, .has_end = true, .end = 20}, kScale, 2};
  const std::vector<float> scores = normal_values<float>(kRows * kKeys, 1, 4),
                           d_p = normal_values<float>(kRows * kKeys, 2);
  std::vector<std::vector<float>> results;
  for (const bool in_place : {false, true}) {
    Gpu gpu;
    const auto result = [&](const Array<float>& from) {
      return in_place ? from : gpu.array<float>(kRows * kKeys);
    };
    const Array<float> given = gpu.array(scores), of_backward = gpu.array(scores), gradients = gpu.array(d_p),
                       max = gpu.array(std::vector<float>(kRows, -INFINITY)),
                       sum = gpu.array(std::vector<float>(kRows, kNoKeysYet)),
                       rescale = gpu.array<float>(kRows), p = result(given), p_again = result(of_backward),
                       d_s = result(gradients);
    launch_softmax_tile(tile, GpuNumber::fp32, given.data(), p.data(),
                        {max.data(), sum.data(), rescale.data()}, nullptr);
    launch_gradient_tile(tile, GpuNumber::fp32, of_backward.data(), gradients.data(), p_again.data(),
                         d_s.data(), max.data(), sum.data(), nullptr);
    for (const Array<float>& array : {p, p_again, d_s}) results.push_back(array.values());
  }
  for (int i = 0; i < 3; ++i) EXPECT_EQ(results[i], results[3 + i]) << i;
}

TYPED_TEST(ScoreTileKernel, a_score_that_is_no_number_makes_its_row_so_and_no_other) {
  using X = TypeParam;
  constexpr int64_t kRows = 2, kKeys = 16;
  for (const float cap : {0.0F, 5.0F}) {
    Gpu gpu;
    std::vector<float> scores(kRows * kKeys, 1);
    scores[3] = NAN;
    const Array<float> max = gpu.array(std::vector<float>(kRows, -INFINITY)),
                       sum = gpu.array(std::vector<float>(kRows, kNoKeysYet)),
                       rescale = gpu.array<float>(kRows);
    const Array<X> p = gpu.array<X>(kRows * kKeys);
    const ScoreTile tile{kRows, 1, kKeys, {.keys = kKeys}, 1, cap};
    launch_softmax_tile(tile, number_of<X>(), gpu.array(scores).data(), p.data(),
                        {max.data(), sum.data(), rescale.data()}, nullptr);
    EXPECT_TRUE(std::isnan(sum.values()[0]));
    EXPECT_NEAR(sum.values()[1], kKeys, 1e-4);
  }
}

TYPED_TEST(ScoreTileKernel, memory_gives_each_score_once_and_takes_each_result_once) {
  using X = TypeParam;
  constexpr int64_t kRows = 4, kKeys = 2048, kScores = kRows * kKeys, kBytes = sizeof(X);
  Gpu gpu;
  const Array<float> scores = gpu.array(normal_values<float>(kScores, 1)),
                     d_p = gpu.array(normal_values<float>(kScores, 2)),
                     max = gpu.array(std::vector<float>(kRows, -INFINITY)),
                     sum = gpu.array(std::vector<float>(kRows, kNoKeysYet)),
                     rescale = gpu.array<float>(kRows);
  const Array<X> p = gpu.array<X>(kScores), d_s = gpu.array<X>(kScores);
  const ScoreTile tile{kRows, 2, kKeys, {.keys = kKeys}, 1, 50};
  launch_softmax_tile(tile, number_of<X>(), scores.data(), p.data(), {max.data(), sum.data(), rescale.data()},
                      nullptr);
  EXPECT_EQ(gpu.counts().launches, 1);
  EXPECT_EQ(gpu.counts().read_bytes, kScores * 4 + kRows * 8);
  EXPECT_EQ(gpu.counts().reads, kScores / 4 + kRows * 2) << "16 bytes an access";
  EXPECT_EQ(gpu.counts().written_bytes, kScores * kBytes + kRows * 12);
  gpu.clear_counts();
  launch_gradient_tile(tile, number_of<X>(), scores.data(), d_p.data(), p.data(), d_s.data(), max.data(),
                       sum.data(), nullptr);
  EXPECT_EQ(gpu.counts().launches, 1);
  EXPECT_EQ(gpu.counts().distinct_read_bytes, kScores * 8 + kRows * 8);
  EXPECT_EQ(gpu.counts().written_bytes, 2 * kScores * kBytes);
}

}  // namespace
}  // namespace trireme::played_score_tile_test
