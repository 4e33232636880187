// --continue_run: a new run that begins where a finished one ended.
#include "trireme/train/continued_run.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/train/run_directory.h"

#include "tests/support/error_message.h"
#include "tests/train/tiny_run.h"

namespace trireme::continued_run_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::tensors_of;
using testing::TinyOutcome;
using testing::TinyRun;
using testing::train_on_ranks;

TrainOptions continued(const TinyRun& run, const TrainOptions& finished) {
  TrainOptions options = run.options("continued");
  options.continue_run = finished.output_dir;
  options.model_dir = continued_checkpoint(finished.output_dir);
  options.context_stages = "32:4:5e-3";
  return options;
}

// The second stage of a run of two is the same as a run that continues one of the first stage alone: weights,
// AdamW's moments and its count of steps.
TEST(ContinuedRun, begins_with_the_weights_and_optimizer_states_of_the_finished_one) {
  const TinyRun run;
  TrainOptions options = run.options("both");
  options.context_stages = "16:5,32:4:5e-3";
  const TinyOutcome both = train_on_ranks(2, options);
  options.output_dir = run.folder() / "finished";
  options.context_stages = "16:5";
  train_on_ranks(2, options);
  const TinyOutcome second = train_on_ranks(2, continued(run, options));
  ASSERT_EQ(second.losses.size(), 4U);
  for (const auto& [step, loss] : second.losses) EXPECT_EQ(loss, both.losses.at(step + 5)) << step;
  EXPECT_EQ(tensors_of(second.outcome.checkpoint), tensors_of(both.outcome.checkpoint));
  EXPECT_EQ(second.outcome.steps, 4);
  EXPECT_EQ(second.records.at(4).tokens_seen, 4 * 4 * 32);
  EXPECT_THAT(second.output, AllOf(HasSubstr("begins with weights and optimizer states"),
                                   HasSubstr("step-5, after 5 of the 5 steps of its run"),
                                   HasSubstr("length 16 -> 32: the loss was ")));
}

TEST(ContinuedRun, says_the_positions_that_it_goes_on_with) {
  const TinyRun run;
  TrainOptions options = run.options("finished");
  options.context_stages = "16:1";
  options.warmup_ratio = 0;
  options.engine.rope.scaling = "yarn:4";
  train_on_ranks(1, options);
  TrainOptions next = continued(run, options);
  next.context_stages = "32:1";
  next.warmup_ratio = 0;
  EXPECT_THAT(train_on_ranks(1, next).output,
              HasSubstr("rope yarn x 4 of 512 positions, theta 10000: 2,048 positions"));
}

TEST(ContinuedRun, goes_on_from_its_own_checkpoints_once_it_has_some) {
  const TinyRun run;
  TrainOptions options = run.options("finished");
  options.context_stages = "16:5";
  train_on_ranks(1, options);
  TrainOptions next = continued(run, options);
  const TinyOutcome whole = train_on_ranks(1, next);
  next.output_dir = run.folder() / "stopped";
  train_on_ranks(1, next, 2);
  next.resume_from_checkpoint = "true";
  const TinyOutcome resumed = train_on_ranks(1, next);
  EXPECT_EQ(resumed.losses.begin()->first, 3);
  EXPECT_EQ(tensors_of(resumed.outcome.checkpoint), tensors_of(whole.outcome.checkpoint));
}

TEST(ContinuedRun, refuses_what_is_no_finished_run_and_never_writes_over_one) {
  const TinyRun run;
  TrainOptions options = run.options("finished");
  options.context_stages = "16:2";
  EXPECT_THAT(testing::message_of<ConfigError>([&] { continued_checkpoint(options.output_dir); }),
              HasSubstr("there is no checkpoint in"));
  const TinyOutcome finished = train_on_ranks(1, options);
  TrainOptions next = continued(run, options);
  next.output_dir = options.output_dir;
  next.overwrite_output_dir = true;
  EXPECT_THAT(testing::problem_of(next), HasSubstr("which this run begins with and would remove"));
  next = continued(run, options);
  next.model_dir = run.model();
  EXPECT_THAT(testing::problem_of(next), HasSubstr("--model_name_or_path"));
  // A checkpoint may be named, and is read whole before anything begins.
  next = continued(run, options);
  next.continue_run = finished.outcome.checkpoint;
  EXPECT_EQ(train_on_ranks(1, next).outcome.steps, 4);
  std::ofstream(finished.outcome.checkpoint / "rank-00000.safetensors", std::ios::app) << "x";
  next.output_dir = run.folder() / "again";
  EXPECT_THAT(testing::problem_of<DataError>(next), HasSubstr("rank-00000"));
}

}  // namespace
}  // namespace trireme::continued_run_test
