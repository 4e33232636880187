// A request to stop that comes in a save, or before an evaluation, which may take longer than the time that a
// scheduler leaves.
#include <atomic>
#include <map>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/comm/thread_world.h"
#include "trireme/train/run_directory.h"

#include "tests/train/tiny_run.h"

namespace trireme::stop_request_test {
namespace {

using testing::saved_steps;
using testing::TinyOutcome;
using testing::TinyRun;
using testing::train_on_ranks;

// Sets the flag as soon as a checkpoint is told of.
class StopWhenSaved : public std::stringbuf {
 public:
  explicit StopWhenSaved(std::atomic<bool>& stop) : stop_(stop) {}

 private:
  int sync() override {
    if (str().find("saved ") != std::string::npos) stop_ = true;
    return 0;
  }
  std::atomic<bool>& stop_;
};

TEST(StopRequest, that_comes_in_a_save_lets_it_finish_and_needs_no_step_more) {
  const TinyRun run;
  TrainOptions options = run.options("run");
  options.save_steps = 4;
  std::atomic<bool> stop{false};
  StopWhenSaved buffer(stop);
  std::ostream out(&buffer);
  TrainOutcome outcome;
  run_ranks_as_threads(1, [&](World& world) {
    TrainHooks hooks;
    hooks.out = &out;
    hooks.stop_requested = &stop;
    outcome = train(world, options, hooks);
  });
  EXPECT_TRUE(outcome.stopped);
  EXPECT_EQ(outcome.steps, 4);
  EXPECT_EQ(saved_steps(options), std::vector<int64_t>{4});
}

// The held-out losses after each step, from a run's metrics.
std::map<int64_t, std::vector<double>> evaluations_of(const TrainOptions& options) {
  std::map<int64_t, std::vector<double>> losses;
  for (const Json& record : testing::metrics_of(options))
    if (record.contains("eval_loss"))
      losses[record["step"].get<int64_t>()].push_back(record["eval_loss"].get<double>());
  return losses;
}

// Nine steps in stages of 16 and 32 tokens, evaluated after every second and the last.
TrainOptions evaluated_run(const TinyRun& run, const std::string& name) {
  TrainOptions options = run.options(name);
  options.validation_split_percentage = 25;
  options.eval_steps = 2;
  return options;
}

TEST(StopRequest, puts_an_evaluation_off_that_is_made_by_the_run_that_goes_on) {
  const TinyRun run;
  const TrainOptions whole = evaluated_run(run, "whole");
  train_on_ranks(2, whole);
  const auto expected = evaluations_of(whole);
  ASSERT_EQ(expected.size(), 5U);
  for (const int64_t stop : {2, 9}) {
    TrainOptions options = evaluated_run(run, cat("stopped-", stop));
    const TinyOutcome first = train_on_ranks(2, options, stop);
    EXPECT_TRUE(first.outcome.stopped);
    EXPECT_EQ(saved_steps(options), std::vector<int64_t>{stop});
    EXPECT_EQ(evaluations_of(options).count(stop), 0U) << "it saved first";
    options.resume_from_checkpoint = "true";
    const TinyOutcome second = train_on_ranks(2, options);
    EXPECT_FALSE(second.outcome.stopped);
    EXPECT_EQ(evaluations_of(options), expected) << "stopped after step " << stop;
    // As after a crash before the next save: from the checkpoint that says that the evaluation is due.
    options.resume_from_checkpoint = (RunDirectory(options.output_dir).checkpoint(stop)).string();
    train_on_ranks(2, options);
    EXPECT_EQ(evaluations_of(options), expected) << "gone on twice from step " << stop;
  }
}

// The run that goes on is in the next stage, at another length.
TEST(StopRequest, puts_none_off_at_the_end_of_a_stage) {
  const TinyRun run;
  TrainOptions options = evaluated_run(run, "run");
  options.context_stages = "16:2,32:2";
  EXPECT_TRUE(train_on_ranks(2, options, 2).outcome.stopped);
  EXPECT_EQ(evaluations_of(options).count(2), 1U);
}

}  // namespace
}  // namespace trireme::stop_request_test
