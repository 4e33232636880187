// The numbers that a run writes down are those of what it did: each against a calculation of its own.
#include "trireme/train/run_records.h"

#include <cmath>

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/comm/thread_world.h"
#include "trireme/data/evaluation_loader.h"
#include "trireme/data/held_out_split.h"
#include "trireme/data/packed_loader.h"
#include "trireme/engine/assemble.h"
#include "trireme/eval/loss_by_position.h"

#include "tests/support/small_files.h"
#include "tests/train/tiny_run.h"

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::metrics_of;
using ::testing::Not;
using testing::TinyOutcome;
using testing::TinyRun;
using testing::train_on_ranks;

void with_engine(const TrainOptions& options, const std::function<void(Engine&)>& body) {
  at::set_num_threads(1);
  run_ranks_as_threads(1, [&](World& world) { body(*assemble(world, options.model_dir, options.engine)); });
}

// A step that changes nothing that a number would show.
TrainOptions resting(const TinyRun& run, const std::string& name) {
  TrainOptions options = run.options(name);
  options.context_stages = "16:2";
  options.learning_rate = 1e-30;
  options.samples.packing.kind = Packing::concat;
  return options;
}

LoaderOptions loader_of(const TrainOptions& options) {
  LoaderOptions loader;
  loader.packing = options.samples.packing;
  loader.sequence_tokens = 16;
  loader.accumulation_steps = options.gradient_accumulation_steps;
  loader.seed = static_cast<uint64_t>(options.seed);
  loader.vocab_size = 70;
  return loader;
}

// A disk that is full does not hide that the files are removed later.
TEST(RunRecords, that_cannot_be_written_are_told_once_for_each_kind_of_problem) {
  const testing::TemporaryFolder folder;
  const RunDirectory run(folder / "run");
  std::vector<std::string> notes;
  RunRecords records(
      run, std::nullopt, run.events(), [&](const std::string& text) { notes.push_back(text); },
      LastEvaluation::kept, 0);
  const Json record = {{"step", 1}, {"loss", 1.5}};
  const auto keep_where_they_are_removed = [&] {
    std::filesystem::remove_all(run.path());
    records.keep(record);
  };
  records.keep(record);
  EXPECT_TRUE(notes.empty());
  {
    const testing::SmallFiles full(1);
    records.keep(record);
    records.keep(record);
  }
  ASSERT_EQ(notes.size(), 2U);
  EXPECT_THAT(notes[0], AllOf(HasSubstr("warning: "), HasSubstr(run.metrics().string()), HasSubstr("large")));
  EXPECT_THAT(notes[1], AllOf(HasSubstr("TensorBoard"), HasSubstr("large")));
  keep_where_they_are_removed();
  keep_where_they_are_removed();
  ASSERT_EQ(notes.size(), 4U);
  EXPECT_THAT(notes[2], AllOf(HasSubstr(run.metrics().string()), HasSubstr("removed")));
  EXPECT_THAT(notes[3], AllOf(HasSubstr(run.events().string()), HasSubstr("removed")));
}

TEST(RunRecords, speed_counts_the_tokens_of_all_ranks_once) {
  const TinyRun run;
  for (const int ulysses : {1, 2}) {
    TrainOptions options = resting(run, cat("run-", ulysses));
    options.engine.ulysses = ulysses;
    train_on_ranks(2, options);
    const int64_t tokens = 16 * 2 * (2 / ulysses);
    for (const Json& record : metrics_of(options)) {
      EXPECT_NEAR(record["tokens_per_second"].get<double>() * record["seconds"].get<double>(),
                  static_cast<double>(tokens), 1e-6);
      EXPECT_EQ(record["tokens_seen"], record["step"].get<int64_t>() * tokens);
    }
  }
}

// 400 tokens in documents of 37: the border nearest to three quarters is the eighth.
TEST(RunRecords, the_data_that_is_trained_on_ends_where_what_is_held_out_begins) {
  const TinyRun run;
  TrainOptions options = resting(run, "run");
  options.validation_split_percentage = 25;
  const TinyOutcome outcome = train_on_ranks(1, options);
  const Json loader = read_json(outcome.outcome.checkpoint / "trainer_state.json")["loader"];
  EXPECT_EQ(loader["range_begin"], 0);
  EXPECT_EQ(loader["range_end"], 8 * 37);
}

TEST(RunRecords, mfu_is_the_model_s_flops_over_the_peak_of_all_ranks) {
  const TinyRun run;
  TrainOptions options = resting(run, "run");
  options.peak_tflops = 0.25;
  options.engine.ulysses = 2;
  train_on_ranks(2, options);
  const ModelConfig config = read_model_config(run.model());
  // Two samples of 16 tokens, causal: half of the square a head and layer, 12 FLOPs a pair and width.
  const double pairs = static_cast<double>(config.num_hidden_layers) * 16 * 16 / 2;
  const double flops =
      2 * (6.0 * static_cast<double>(make_model_layout(config).matmul_parameter_count()) * 16 +
           12.0 * static_cast<double>(config.heads().query_width()) * pairs);
  for (const Json& record : metrics_of(options))
    EXPECT_NEAR(record["mfu"].get<double>() * record["seconds"].get<double>() * 0.25e12 * 2 / flops, 1, 1e-9);
}

TEST(RunRecords, the_gradient_norm_is_that_of_the_gradients) {
  const TinyRun run;
  TrainOptions options = resting(run, "run");
  options.engine.optimizer.max_grad_norm = 1e-3;  // the record tells the one before clipping
  const TinyOutcome outcome = train_on_ranks(2, options);
  with_engine(options, [&](Engine& engine) {
    auto set = std::make_shared<IndexedDataset>(run.tokens());
    LoaderOptions loader = loader_of(options);
    loader.batch_size = 2;  // what the two ranks took
    engine.accumulate_gradients(PackedLoader(set, whole_set(*set), loader).next());
    double squares = 0;
    for (const auto& [name, gradient] : testing::all_gradients(engine))
      squares += gradient.to(at::kDouble).square().sum().item<double>();
    const auto recorded = metrics_of(options)[0]["grad_norm"].get<double>();
    EXPECT_GT(recorded, 1e-3);
    EXPECT_NEAR(recorded, std::sqrt(squares), 1e-5 * recorded);
  });
}

TEST(RunRecords, eval_loss_is_that_of_the_samples_held_out) {
  const TinyRun run;
  TrainOptions options = resting(run, "run");
  options.validation_split_percentage = 25;
  options.eval_steps = 1;
  train_on_ranks(2, options);
  TrainOptions few = options;
  few.output_dir = run.folder() / "few";
  few.max_eval_samples = 1;
  train_on_ranks(2, few);
  with_engine(options, [&](Engine& engine) {
    auto set = std::make_shared<IndexedDataset>(run.tokens());
    const HeldOutSplit split = split_held_out(*set, 0.25);
    const auto loss_of = [&](TokenSpan range, int64_t samples) {
      EvaluationLoader loader(set, range, loader_of(options));
      if (samples > 0) loader.limit_rows(samples);
      return evaluate_loss_by_position(engine, loader, power_of_two_edges(16)).loss();
    };
    const double held_out = loss_of(split.held_out, 0), trained = loss_of(split.train, 0);
    const double one = loss_of(split.held_out, 1);
    ASSERT_GT(std::abs(held_out - trained), 1e-3) << "data on which the two differ";
    ASSERT_GT(std::abs(held_out - one), 1e-3);
    int evaluations = 0;
    for (const Json& record : metrics_of(options)) {
      if (!record.contains("eval_loss")) {
        EXPECT_GT(std::abs(record["loss"].get<double>() - held_out), 1e-3);
        continue;
      }
      ++evaluations;
      EXPECT_NEAR(record["eval_loss"].get<double>(), held_out, 1e-5);
      EXPECT_GT(record["samples"], 1);
    }
    EXPECT_EQ(evaluations, 2);
    for (const Json& record : metrics_of(few)) {
      if (!record.contains("eval_loss")) continue;
      EXPECT_EQ(record["samples"], 1);
      EXPECT_NEAR(record["eval_loss"].get<double>(), one, 1e-5);
    }
  });
}

TEST(RunRecords, the_seed_decides_the_order_of_samples) {
  const TinyRun run;
  const auto losses = [&](const std::string& name, int64_t seed) {
    TrainOptions options = resting(run, name);
    options.context_stages = "16:6";
    options.seed = seed;
    return train_on_ranks(1, options).losses;
  };
  const auto one = losses("one", 1);
  EXPECT_EQ(losses("again", 1), one);
  EXPECT_NE(losses("two", 2), one);
}

TEST(RunRecords, a_step_may_take_the_end_of_an_epoch_and_the_begin_of_the_next) {
  const TinyRun run(170);  // 10 windows of 16
  TrainOptions options = run.options("run");
  options.context_stages.clear();
  options.samples.max_seq_length = 16;
  options.num_train_epochs = 2;
  options.gradient_accumulation_steps = 4;  // 2.5 steps an epoch
  const TinyOutcome outcome = train_on_ranks(1, options);
  EXPECT_EQ(outcome.outcome.total_steps, 5);
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("epoch 2 of 2 begins in step 3"), Not(HasSubstr("samples again"))));
  options.num_train_epochs = 1;
  options.warmup_ratio = 0;
  options.overwrite_output_dir = true;
  EXPECT_THAT(train_on_ranks(1, options).output,
              AllOf(HasSubstr("the last step takes 2 samples again"), Not(HasSubstr("epoch 2"))));
  options.gradient_accumulation_steps = 25;
  EXPECT_THAT(train_on_ranks(1, options).output,
              AllOf(HasSubstr("a step takes 25 samples, the set has 10: each step reads the set 2.5 times"),
                    HasSubstr("the last step takes 15 samples again")));
}

}  // namespace
}  // namespace trireme
