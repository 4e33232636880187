// Rates of several rounds: a point's rate is that of its mean time, where every round measured it.
#include "trireme/measure/rate_rounds.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

TEST(MeanOfRounds, a_rate_is_that_of_the_mean_time) {
  const std::vector<Rates> rounds{
      {{WorkKind::matmul, {{{64, 256, 100}, {512, 256, 30}}}}},
      {{WorkKind::matmul, {{{64, 256, 25}}}}}};  // this round had no time for the large size
  const Rates mean = mean_of_rounds(rounds);
  ASSERT_EQ(mean.size(), 1);
  EXPECT_EQ(mean.at(WorkKind::matmul).points, (std::vector<RatePoint>{{64, 256, 40}}));
}

}  // namespace
}  // namespace trireme
