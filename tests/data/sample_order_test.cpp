#include "trireme/data/sample_order.h"

#include <array>
#include <set>

#include <gtest/gtest.h>

namespace trireme {
namespace {

TEST(SampleOrder, is_a_permutation_for_every_count) {
  for (const int64_t count : {1, 2, 3, 4, 5, 16, 17, 255, 1000, 4097}) {
    const SampleOrder order(count, 3, 1);
    std::set<int64_t> seen;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t sample = order[i];
      EXPECT_TRUE(sample >= 0 && sample < count);
      seen.insert(sample);
    }
    EXPECT_EQ(static_cast<int64_t>(seen.size()), count);
  }
}

TEST(SampleOrder, moves_samples_evenly_over_epochs) {
  // Where sample order[0] lands over many epochs: each of 8 positions about equally often (chi-square, 7
  // degrees).
  std::array<double, 8> hits{};
  constexpr int kEpochs = 4000;
  for (int epoch = 0; epoch < kEpochs; ++epoch) ++hits.at(static_cast<size_t>(SampleOrder(8, 1, epoch)[0]));
  double chi_square = 0;
  for (const double h : hits) chi_square += (h - kEpochs / 8.0) * (h - kEpochs / 8.0) / (kEpochs / 8.0);
  EXPECT_LT(chi_square, 24.3);  // 99.9 %
}

}  // namespace
}  // namespace trireme
