// Checkpoints by steps and by the clock, and the word to a run that saves rarely.
#include "trireme/train/checkpoint_interval.h"

#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/comm/thread_world.h"
#include "trireme/train/run_directory.h"

#include "tests/train/tiny_run.h"

namespace trireme::checkpoint_interval_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::saved_steps;
using testing::TinyRun;
using testing::train_on_ranks;

TEST(CheckpointInterval, counts_minutes_from_the_last_checkpoint_of_either_kind) {
  double seconds = 1000;
  CheckpointInterval interval(500, 2, [&] { return seconds; });
  EXPECT_FALSE(interval.is_due_by_clock());
  seconds += 119;
  EXPECT_FALSE(interval.is_due_by_clock());
  seconds += 1;
  EXPECT_TRUE(interval.is_due_by_clock());
  interval.begin();
  EXPECT_FALSE(interval.is_due_by_clock());
  EXPECT_TRUE(interval.is_due_after_step(500));
  EXPECT_FALSE(interval.is_due_after_step(501));
}

TEST(CheckpointInterval, of_no_steps_and_no_minutes_is_never_due) {
  double seconds = 0;
  const CheckpointInterval interval(0, 0, [&] { return seconds; });
  seconds = 1e9;
  EXPECT_FALSE(interval.is_due_by_clock());
  EXPECT_FALSE(interval.is_due_after_step(500));
}

// What is told of steps that take these seconds, up to the third.
std::string told(RareCheckpoints rare, const std::vector<double>& seconds, int64_t saved_anyway,
                 int64_t steps_before = 0) {
  rare.stage_begins(saved_anyway);
  std::string all;
  for (const double of_step : seconds) all += rare.add_step(of_step, ++steps_before);
  return all;
}

TEST(RareCheckpoints, are_told_at_the_pace_of_the_first_steps_with_what_saves_hourly) {
  EXPECT_EQ(told({500, true}, {900, 554, 560}, 10'000),
            "a checkpoint every 77 h at this pace; --save_minutes 60 is one an hour");
  EXPECT_EQ(told({500, false}, {900, 554, 560}, 10'000),
            "a checkpoint every 77 h at this pace; --save_steps 6 is one an hour");
  EXPECT_EQ(told({500, true}, {554, 554, 554}, 103),
            "no checkpoint before step 103, 15 h from now at this pace; --save_minutes 60 is one an hour");
  EXPECT_EQ(
      told({0, true}, {5000, 5000, 5000}, 20),
      "no checkpoint before step 20, 24 h from now at this pace; --save_minutes 60 is one after each step");
}

TEST(RareCheckpoints, are_no_matter_where_the_next_ones_are_near) {
  EXPECT_EQ(told({500, true}, {10, 10, 10}, 10'000), "") << "1.4 h";
  EXPECT_EQ(told({500, true}, {9000, 1, 1}, 10'000), "") << "the first step alone is slow";
  EXPECT_EQ(told({500, true}, {554, 554}, 10'000), "") << "too few steps to tell";
  EXPECT_EQ(told({500, true}, {554, 554, 554}, 510, 490), "") << "7 steps to the next, and 10 to the end";
}

TEST(RareCheckpoints, are_told_once_and_seen_in_the_stage_whose_steps_are_long) {
  RareCheckpoints rare(500, true);
  rare.stage_begins(2000);
  std::string all;
  int64_t step = 0;
  for (int i = 0; i < 5; ++i) all += rare.add_step(1, ++step);
  EXPECT_EQ(all, "");
  rare.stage_begins(2000);
  for (int i = 0; i < 5; ++i) all += rare.add_step(60, ++step);
  EXPECT_THAT(all, HasSubstr("every 8 h"));
  rare.stage_begins(2000);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(rare.add_step(600, ++step), "");
}

// Trains on two ranks. By rank 0's clock each step takes a minute; that of rank 1 stands.
testing::StepLosses train_by_the_minute(const TrainOptions& options) {
  at::set_num_threads(1);
  testing::StepLosses losses;
  run_ranks_as_threads(2, [&](World& world) {
    double seconds = 0;
    TrainHooks hooks;
    hooks.clock = [&] { return seconds; };
    if (world.rank() == 0)
      hooks.on_step = [&](const StepRecord& record) {
        seconds += 60;
        losses[record.step] = record.loss;
      };
    train(world, options, hooks);
  });
  return losses;
}

TEST(SaveMinutes, save_between_save_steps_on_all_ranks_when_rank_0_says_so) {
  const TinyRun run;
  TrainOptions options = run.options("run");
  options.save_steps = 4;
  options.save_minutes = 3;
  const testing::StepLosses losses = train_by_the_minute(options);
  EXPECT_THAT(saved_steps(options), ElementsAre(3, 4, 7, 8, 9)) << "7: three minutes after 4";

  TrainOptions by_steps = run.options("by steps");
  by_steps.save_steps = 4;
  EXPECT_EQ(train_by_the_minute(by_steps), losses);
  EXPECT_THAT(saved_steps(by_steps), ElementsAre(4, 8, 9));

  // A run that goes on may be told otherwise.
  options.resume_from_checkpoint = RunDirectory(options.output_dir).checkpoint(7).string();
  options.save_minutes = 0;
  const testing::TinyOutcome resumed = train_on_ranks(2, options);
  EXPECT_THAT(resumed.output, Not(HasSubstr("save_minutes")));
  for (const int64_t step : {8, 9}) EXPECT_EQ(resumed.losses.at(step), losses.at(step));
}

TEST(SaveMinutes, are_all_that_saves_where_there_are_no_save_steps_but_the_end) {
  const TinyRun run;
  TrainOptions options = run.options("run");
  options.save_minutes = 4;
  options.save_total_limit = 2;
  train_by_the_minute(options);
  EXPECT_THAT(saved_steps(options), ElementsAre(8, 9));
}

TEST(SaveMinutes, are_advised_to_a_run_whose_checkpoints_are_hours_apart) {
  const TinyRun run;
  TrainOptions options = run.options("run");
  options.context_stages.clear();
  options.samples.max_seq_length = 16;
  options.max_steps = 1'000'000'000'000;
  EXPECT_THAT(train_on_ranks(2, options, 4).output,
              HasSubstr(" from now at this pace; --save_minutes 60 is one an hour\n"));
  options.output_dir = run.folder() / "minutes";
  options.save_minutes = 60;
  EXPECT_THAT(train_on_ranks(2, options, 4).output, Not(HasSubstr("at this pace")));
}

}  // namespace
}  // namespace trireme::checkpoint_interval_test
