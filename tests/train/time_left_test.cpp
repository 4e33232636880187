#include "trireme/train/time_left.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

std::vector<ContextStage> stages() {
  std::vector<ContextStage> all(2);
  all[0].steps = 4;
  all[1].first_step = 4;
  all[1].steps = 2;
  return all;
}

TEST(TimeLeft, is_the_flops_of_the_steps_to_come_at_the_speed_so_far) {
  TimeLeft left({100, 1000});
  EXPECT_EQ(left.seconds(stages(), 0), 0);
  left.add_step(0, 100, 2);  // 50 FLOP/s
  EXPECT_DOUBLE_EQ(left.seconds(stages(), 1), (3 * 100 + 2 * 1000) / 50.0);
  EXPECT_DOUBLE_EQ(left.seconds(stages(), 5), 1000 / 50.0);
  EXPECT_EQ(left.seconds(stages(), 6), 0);
}

TEST(TimeLeft, steps_with_other_documents_change_their_stage_alone) {
  TimeLeft left({100, 1000});
  for (int step = 0; step < 60; ++step) left.add_step(0, 40, 4);  // 10 FLOP/s
  EXPECT_NEAR(left.seconds(stages(), 1), (3 * 40 + 2 * 1000) / 10.0, 0.01);
}

TEST(TimeLeft, the_last_steps_count_most) {
  TimeLeft left({100, 1000});
  left.add_step(0, 100, 100);  // 1 FLOP/s
  for (int step = 0; step < 10; ++step) left.add_step(0, 100, 1);
  // The slow step's weight is 0.8^10.
  EXPECT_NEAR(left.seconds(stages(), 5), 1000 * (0.01 + 0.99 * 0.107374), 0.1);
}

}  // namespace
}  // namespace trireme
