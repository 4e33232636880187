// The best checkpoint so far: whole runs, in threads.
#include "trireme/train/best_checkpoint.h"

#include <cmath>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/data/indexed_dataset_writer.h"
#include "trireme/train/check_options.h"
#include "trireme/train/run_directory.h"

#include "tests/support/error_message.h"
#include "tests/train/tiny_run.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;
using testing::saved_steps;
using testing::TinyRun;
using testing::train_on_ranks;

// Three tokens by turns, from `first` on.
fs::path three_tokens(const TinyRun& run, const std::string& name, int32_t first) {
  fs::path prefix = run.folder() / name;
  IndexedDatasetWriter writer(prefix, 70);
  for (int document = 0; document < 12; ++document) {
    std::vector<int32_t> tokens(33);
    for (int32_t i = 0; i < 33; ++i) tokens[static_cast<size_t>(i)] = first + i % 3;
    writer.add_document(tokens);
  }
  writer.finish();
  return prefix;
}

// Of which held-out losses grow with every step: it learns that the held-out tokens never come.
TrainOptions growing_worse(const TinyRun& run) {
  TrainOptions options = run.options("run");
  options.context_stages = "16:10";
  options.train_file = three_tokens(run, "train", 1);
  options.eval_file = three_tokens(run, "eval", 50);
  options.save_steps = 2;
  options.eval_steps = 2;
  options.save_total_limit = 1;
  options.metric_for_best_model = BestMetric::eval_loss;
  return options;
}

// The evaluated step with the smallest loss.
int64_t best_step_of(const TrainOptions& options) {
  std::map<double, int64_t> steps;
  for (const Json& record : testing::metrics_of(options))
    if (record.contains("eval_loss"))
      steps[record["eval_loss"].get<double>()] = record["step"].get<int64_t>();
  return steps.begin()->second;
}

TEST(BestCheckpoint, stays_beside_the_newest_through_stops_and_is_named) {
  const TinyRun run;
  TrainOptions options = growing_worse(run);
  const auto first = train_on_ranks(2, options, 6);
  const int64_t best = best_step_of(options);
  ASSERT_LT(best, 6) << "the losses do not grow";
  EXPECT_THAT(saved_steps(options), ElementsAre(best, 6));
  options.resume_from_checkpoint = "true";
  const auto second = train_on_ranks(2, options);
  ASSERT_EQ(best_step_of(options), best);
  EXPECT_THAT(saved_steps(options), ElementsAre(best, 10));
  const RunDirectory folder(options.output_dir);
  EXPECT_THAT(second.output,
              HasSubstr(cat("best checkpoint: ", folder.checkpoint(best).string(), " (eval_loss ")));
  EXPECT_EQ(read_json(folder.checkpoint(10) / "trainer_state.json")["best"]["step"], best);
}

TEST(BestCheckpoint, counts_towards_the_limit_and_goes_where_nobody_asks_for_it) {
  const TinyRun run;
  TrainOptions options = growing_worse(run);
  options.save_total_limit = 3;
  options.engine.save_in_background = true;
  train_on_ranks(1, options);
  const int64_t best = best_step_of(options);
  ASSERT_LT(best, 8);
  EXPECT_THAT(saved_steps(options), ElementsAre(best, 8, 10));
  options.output_dir = run.folder() / "newest";
  options.metric_for_best_model = BestMetric::none;
  train_on_ranks(1, options);
  EXPECT_THAT(saved_steps(options), ElementsAre(6, 8, 10));
}

TEST(BestCheckpoint, is_none_of_those_that_the_clock_saves_between_evaluations) {
  const TinyRun run;
  TrainOptions options = growing_worse(run);
  options.save_minutes = 1e-9;  // after every step
  train_on_ranks(2, options);
  const int64_t best = best_step_of(options);
  ASSERT_LT(best, 9);
  EXPECT_THAT(saved_steps(options), ElementsAre(best, 10));
}

TEST(BestCheckpoint, is_forgotten_with_a_word_where_it_is_gone_or_the_held_out_data_is_another) {
  const TinyRun run;
  TrainOptions options = growing_worse(run);
  train_on_ranks(1, options, 6);
  const int64_t best = best_step_of(options);
  const fs::path copy = run.folder() / "copy";
  fs::copy(options.output_dir, copy, fs::copy_options::recursive);
  options.resume_from_checkpoint = "true";
  fs::remove_all(RunDirectory(options.output_dir).checkpoint(best));
  EXPECT_THAT(
      train_on_ranks(1, options).output,
      AllOf(HasSubstr(cat("the best checkpoint so far, of step ", best)), HasSubstr("it is not in ")));
  options.output_dir = copy;
  options.eval_file = run.tokens();
  EXPECT_THAT(train_on_ranks(1, options).output, HasSubstr("the held-out samples are others"));
}

TEST(BestCheckpoint, is_not_compared_with_losses_over_more_or_fewer_samples) {
  const TinyRun run;
  TrainOptions options = growing_worse(run);
  options.max_eval_samples = 3;
  train_on_ranks(1, options, 6);
  const int64_t best = best_step_of(options);
  ASSERT_LT(best, 6) << "the losses do not grow";
  options.resume_from_checkpoint = "true";
  options.max_eval_samples = 5;
  const std::string output = train_on_ranks(1, options).output;
  EXPECT_THAT(output, HasSubstr("the held-out samples are others"));
  EXPECT_THAT(output,
              HasSubstr(cat("best checkpoint: ", RunDirectory(options.output_dir).checkpoint(6).string(),
                            " (eval_loss ")));
}

TEST(BestCheckpoint, is_not_the_one_of_another_folder_whose_evaluation_this_run_made) {
  const TinyRun run;
  TrainOptions options = growing_worse(run);
  train_on_ranks(1, options, 2);
  options.resume_from_checkpoint = RunDirectory(options.output_dir).checkpoint(2).string();
  options.output_dir = run.folder() / "elsewhere";
  const std::string output = train_on_ranks(1, options).output;
  ASSERT_EQ(best_step_of(options), 2) << "the losses do not grow";
  const RunDirectory folder(options.output_dir);
  EXPECT_THAT(output, HasSubstr(cat("best checkpoint: ", folder.checkpoint(4).string(), " (eval_loss ")));
  EXPECT_THAT(saved_steps(options), ElementsAre(4, 10));
}

TEST(BestCheckpoint, has_the_smallest_finite_loss_of_its_stage) {
  const std::optional<BestCheckpoint> best = BestCheckpoint{4, 1, 2.5};
  EXPECT_TRUE(is_better(2.4, 1, best));
  EXPECT_FALSE(is_better(2.5, 1, best));
  EXPECT_TRUE(is_better(3, 2, best)) << "at another length";
  for (const auto& before : {best, std::optional<BestCheckpoint>()})
    for (const double odd : {std::nan(""), HUGE_VAL}) EXPECT_FALSE(is_better(odd, 1, before));
  const Json json = to_json(best, BestMetric::eval_perplexity);
  EXPECT_DOUBLE_EQ(json["value"].get<double>(), std::exp(2.5));
  EXPECT_EQ(parse_best_checkpoint(json, "state")->step, 4);
  EXPECT_EQ(parse_best_checkpoint(json, "state")->eval_loss, 2.5);
  EXPECT_THAT(message_of<DataError>([] {
                parse_best_checkpoint({{"step", -1}}, "state: best");
              }),
              HasSubstr("state: best: \"step\""));
}

TEST(BestCheckpoint, needs_an_evaluation_of_every_checkpoint) {
  TrainOptions options;
  options.metric_for_best_model = BestMetric::eval_perplexity;
  const auto refusal = [&] { return message_of<ConfigError>([&] { check_options(options); }); };
  EXPECT_THAT(refusal(),
              AllOf(HasSubstr("--metric_for_best_model eval_perplexity"), HasSubstr("--eval_file")));
  options.eval_file = "text.txt";
  options.save_steps = 500;
  EXPECT_THAT(refusal(), HasSubstr("--eval_steps 500"));
  options.eval_steps = 200;
  EXPECT_THAT(refusal(), HasSubstr("--save_steps 500 is not a multiple of --eval_steps 200"));
  options.eval_steps = 250;
  EXPECT_EQ(refusal(), "no error");
  options.save_minutes = 60;
  EXPECT_EQ(refusal(), "no error");
  options.save_steps = 0;
  EXPECT_THAT(refusal(),
              AllOf(HasSubstr("--save_minutes with --save_steps 0"), HasSubstr("give --save_steps")));
  options.save_minutes = 0;
  EXPECT_EQ(refusal(), "no error");
}

}  // namespace
}  // namespace trireme
