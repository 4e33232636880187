#include "trireme/train/trainer.h"

#include <cmath>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/data/indexed_dataset_writer.h"
#include "trireme/train/resume.h"
#include "trireme/train/run_directory.h"

#include "tests/train/tiny_run.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::problem_of;
using testing::tensors_of;
using testing::TinyOutcome;
using testing::TinyRun;
using testing::train_on_ranks;

TEST(Trainer, loss_falls_on_something_that_can_be_learned) {
  const TinyRun run;
  TrainOptions options = run.options("run");
  options.context_stages = "32:60";
  const TinyOutcome result = train_on_ranks(1, options);
  EXPECT_EQ(result.outcome.steps, 60);
  EXPECT_LT(result.losses.at(60), 0.6 * result.losses.at(1));
}

struct Topology {
  int ranks;
  int ulysses;
  ZeroStage zero = ZeroStage::none;
  bool disk = false;
  Precision precision = Precision::fp32;
  int ring = 1;
  int head_chunks = 1;
  Packing packing = Packing::documents;
  bool encoder = false;
};

void set(TrainOptions& run, const Topology& topology, const std::filesystem::path& folder) {
  EngineOptions& options = run.engine;
  run.samples.packing.kind = topology.packing;
  if (topology.encoder) run.samples.mask_token_id = 69;
  options.ulysses = topology.ulysses;
  options.ring = topology.ring;
  options.head_chunks = topology.head_chunks;
  options.zero = topology.zero;
  options.precision = topology.precision;
  if (topology.disk) {
    options.offload = {Offload::disk, Offload::disk, Offload::disk, folder, 0};
    options.optimizer.state_dtype = at::kBFloat16;
  }
}

// In place of the run's model.
void make_encoder(const TinyRun& run) {
  std::filesystem::remove_all(run.model());
  testing::write_tiny_model(run.model(), testing::tiny_bert_config());
}

class Resume : public ::testing::TestWithParam<Topology> {};

// Ten windows of 16 tokens a set of 160 and some: steps end in the middle of epochs. Stops: inside a stage,
// at the border of two, inside the second.
TEST_P(Resume, is_bitwise_equal_to_never_having_stopped) {
  const TinyRun run(170);
  if (GetParam().encoder) make_encoder(run);
  TrainOptions whole = run.options("whole");
  set(whole, GetParam(), run.folder());
  const TinyOutcome straight = train_on_ranks(GetParam().ranks, whole);
  ASSERT_EQ(straight.losses.size(), 9U);
  const auto expected = tensors_of(straight.outcome.checkpoint);
  for (const int64_t stop : {2, 5, 7}) {
    TrainOptions options = run.options("stopped-" + std::to_string(stop));
    set(options, GetParam(), run.folder());
    const TinyOutcome first = train_on_ranks(GetParam().ranks, options, stop);
    EXPECT_TRUE(first.outcome.stopped);
    EXPECT_EQ(first.outcome.steps, stop);
    options.resume_from_checkpoint = "true";
    const TinyOutcome second = train_on_ranks(GetParam().ranks, options);
    EXPECT_FALSE(second.outcome.stopped);
    EXPECT_EQ(second.outcome.steps, 9);
    auto losses = first.losses;
    losses.insert(second.losses.begin(), second.losses.end());
    EXPECT_EQ(losses, straight.losses) << "stopped after step " << stop;
    EXPECT_EQ(tensors_of(second.outcome.checkpoint), expected) << "stopped after step " << stop;
    EXPECT_EQ(second.records.at(9).tokens_seen, straight.records.at(9).tokens_seen);
    EXPECT_DOUBLE_EQ(second.records.at(9).epoch, straight.records.at(9).epoch);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Topologies, Resume,
    ::testing::Values(Topology{1, 1}, Topology{2, 2}, Topology{2, 1},
                      Topology{2, 2, ZeroStage::gradients, false, Precision::fp16},
                      Topology{2, 2, ZeroStage::parameters, true, Precision::bf16},
                      Topology{2, 1, ZeroStage::none, false, Precision::fp32, 2},
                      Topology{4, 2, ZeroStage::gradients, false, Precision::bf16, 2, 2},
                      Topology{2, 2, ZeroStage::none, false, Precision::fp32, 1, 1, Packing::none},
                      Topology{2, 2, ZeroStage::none, false, Precision::fp32, 1, 1, Packing::documents, true},
                      Topology{4, 2, ZeroStage::parameters, false, Precision::fp32, 2, 1, Packing::none,
                               true}));

// The chosen tokens of each step, and so its loss, are the same however ranks share the samples.
TEST(Trainer, an_encoder_learns_its_masked_tokens_with_the_losses_of_one_rank) {
  const TinyRun run;
  make_encoder(run);
  const auto train = [&](const std::string& name, int ulysses, int ring) {
    TrainOptions options = run.options(name);
    options.context_stages = "32:60";
    options.learning_rate = 5e-3;
    options.samples.mask_token_id = 69;
    options.engine.ulysses = ulysses;
    options.engine.ring = ring;
    return train_on_ranks(ulysses * ring, options);
  };
  const TinyOutcome one = train("one", 1, 1);
  EXPECT_LT(one.losses.at(60), 0.9 * one.losses.at(1));
  for (const auto& [ulysses, ring] : {std::pair(2, 1), {1, 3}, {2, 2}}) {
    const TinyOutcome shared = train(cat("shared-", ulysses, "-", ring), ulysses, ring);
    for (const int64_t step : {1, 2, 3})
      EXPECT_NEAR(shared.losses.at(step), one.losses.at(step), 1e-3)
          << step << ", " << ulysses << " x " << ring;
  }
}

TEST(Trainer, resumes_at_another_number_of_ranks_with_the_losses_of_a_run_that_never_stopped) {
  const TinyRun run(170);
  TrainOptions options = run.options("whole");
  const TinyOutcome straight = train_on_ranks(1, options);
  options = run.options("moved");
  options.engine.ulysses = 2;
  train_on_ranks(2, options, 4);
  options.resume_from_checkpoint = "latest";
  options.engine.ulysses = 3;
  const TinyOutcome moved = train_on_ranks(3, options);
  for (const auto& [step, loss] : moved.losses) EXPECT_NEAR(loss, straight.losses.at(step), 1e-4) << step;
}

struct Split {
  int ulysses;
  int ring;
  int dp;
};

// Documents of 37 tokens in windows of 16 and 32: they cross the borders of windows and of ranks.
TEST(Trainer, packed_documents_over_ranks_have_the_losses_of_one_rank) {
  const TinyRun run(170);
  std::map<Packing, testing::StepLosses> losses;
  for (const Packing packing : {Packing::concat, Packing::documents, Packing::none, Packing::best_fit}) {
    TrainOptions options = run.options(std::string("one-") + name_of(packing));
    options.samples.packing.kind = packing;
    options.engine.optimizer.kind =
        &find_optimizer("sgd");  // AdamW's first steps follow signs, which noise decides
    losses[packing] = train_on_ranks(1, options).losses;
    ASSERT_EQ(losses[packing].size(), 9U);
    for (const Split& split :
         {Split{2, 1, 1}, Split{1, 2, 1}, Split{2, 2, 1}, Split{1, 1, 2}, Split{1, 2, 2}}) {
      const std::string what = cat(name_of(packing), "-", split.ulysses, "x", split.ring, "x", split.dp);
      options.output_dir = run.folder() / what;
      options.engine.ulysses = split.ulysses;
      options.engine.ring = split.ring;
      options.gradient_accumulation_steps = 2 / split.dp;
      const TinyOutcome ranks = train_on_ranks(split.ulysses * split.ring * split.dp, options);
      ASSERT_EQ(ranks.losses.size(), 9U);
      for (const auto& [step, loss] : ranks.losses)
        EXPECT_NEAR(loss, losses[packing].at(step), 1e-4) << what << " step " << step;
    }
  }
  // Each is a task of its own.
  const auto differ = [&](Packing a, Packing b) {
    double most = 0;
    for (const auto& [step, loss] : losses[a]) most = std::max(most, std::abs(loss - losses[b].at(step)));
    return most > 1e-2;
  };
  EXPECT_TRUE(differ(Packing::concat, Packing::documents));
  EXPECT_TRUE(differ(Packing::documents, Packing::none));
}

TEST(Trainer, resumes_only_with_the_packing_that_it_stopped_with) {
  const TinyRun run;
  TrainOptions options = run.options("run");
  train_on_ranks(1, options, 7);
  options.resume_from_checkpoint = "true";
  options.samples.packing.kind = Packing::concat;
  EXPECT_THAT(problem_of(options), AllOf(HasSubstr("packing \"documents\""), HasSubstr("\"concat\"")));
  options.samples.packing.kind = Packing::documents;
  EXPECT_EQ(train_on_ranks(1, options).outcome.steps, 9);
}

TEST(Trainer, resumes_with_other_stages_only_where_the_data_still_fits) {
  const TinyRun run;
  TrainOptions options = run.options("run");
  train_on_ranks(1, options, 7);  // two steps into the second stage
  options.resume_from_checkpoint = "true";
  options.context_stages = "16:9";
  EXPECT_THAT(problem_of(options), HasSubstr("--context_stages"));
  options.context_stages = "16:5,48:4";
  EXPECT_THAT(problem_of(options), HasSubstr("32 -> 48"));
  options.context_stages = "16:5,32:5";
  EXPECT_EQ(train_on_ranks(1, options).outcome.steps, 10);
}

TEST(Trainer, each_stage_has_its_length_and_learning_rates_in_the_metrics) {
  const TinyRun run;
  const TrainOptions options = run.options("run");
  train_on_ranks(1, options);
  std::vector<Json> lines = testing::metrics_of(options);
  ASSERT_EQ(lines.size(), 9U);
  EXPECT_EQ(lines[4]["sequence_length"], 16);
  EXPECT_EQ(lines[5]["sequence_length"], 32);
  EXPECT_EQ(lines[5]["stage"], 1);
  EXPECT_EQ(lines[5]["learning_rate"], 0);  // the second stage warms up anew
  EXPECT_DOUBLE_EQ(lines[6]["learning_rate"], 5e-3);
  EXPECT_EQ(lines[8]["tokens_seen"], 5 * 2 * 16 + 4 * 2 * 32);
  for (const char* key :
       {"loss", "grad_norm", "tokens_per_second", "mfu", "memory_bytes", "seconds", "eta_seconds"})
    EXPECT_TRUE(lines[8].contains(key)) << key;
  // A window of 16 tokens holds at most one end of a document of 37.
  int64_t targets = 0;
  for (size_t step = 0; step < 5; ++step) targets += lines[step]["target_tokens"].get<int64_t>();
  EXPECT_GE(targets, 5 * 2 * 16 - 10);
  EXPECT_LE(targets, 5 * 2 * 16);
  EXPECT_EQ(lines[8]["packing"], "documents");
  const Json config = read_json(options.output_dir / "config.json");
  EXPECT_EQ(config["learning_rate"], 1e-2);
  EXPECT_EQ(config["adam_beta2"], 0.999);
  EXPECT_EQ(config["packing"], "documents");
}

TEST(Trainer, evaluates_on_what_it_held_out) {
  const TinyRun run;
  TrainOptions options = run.options("run");
  options.validation_split_percentage = 25;
  options.eval_steps = 4;
  EXPECT_THAT(train_on_ranks(2, options).output,
              HasSubstr("held out: the last 104 tokens of the set, 3 documents of 11, from document 8 on"));
  std::vector<int64_t> evaluated;
  for (const Json& json : testing::metrics_of(options))
    if (json.contains("eval_loss")) evaluated.push_back(json["step"]);
  EXPECT_EQ(evaluated, (std::vector<int64_t>{4, 8, 9}));
}

TEST(Trainer, epochs_decide_the_number_of_steps_where_max_steps_does_not) {
  const TinyRun run(170);  // 10 windows of 16, 5 steps of 2
  TrainOptions options = run.options("run");
  options.context_stages.clear();
  options.samples.max_seq_length = 16;
  options.num_train_epochs = 1.5;
  EXPECT_EQ(train_on_ranks(1, options).outcome.total_steps, 8);
}

TEST(Trainer, a_loss_that_is_not_finite_names_the_step_the_tensor_and_the_last_good_checkpoint) {
  const TinyRun run;
  TrainOptions options = run.options("run");
  train_on_ranks(1, options, 3);
  options.resume_from_checkpoint = "true";
  options.learning_rate = 1e30;
  options.engine.optimizer.max_grad_norm = 0;
  for (const int ranks : {1, 2})
    EXPECT_THAT(
        problem_of<DataError>(options, ranks),
        AllOf(HasSubstr("training stopped at step"), HasSubstr("step-3"), HasSubstr("unit "),
              AnyOf(HasSubstr("first weight that is not finite"), HasSubstr("first gradient that is not"))));
}

// Weights that are finite and of which the loss is not, by way of one layer.
TEST(Trainer, a_loss_that_overflows_names_the_ranks_and_the_first_gradient_of_the_backward) {
  const TinyRun run;
  TrainOptions options = run.options("large-run");
  options.model_dir = run.overflowing_model();
  EXPECT_THAT(problem_of<DataError>(options, 2),
              AllOf(HasSubstr("step 1"), HasSubstr("There is no checkpoint yet"), Not(HasSubstr("-nan")),
                    HasSubstr("All weights are finite"), HasSubstr("the loss of rank 0's own tokens is not"),
                    HasSubstr("(unit head)"), HasSubstr("another --seed and --resume_with_new_data")));
}

TEST(Trainer, an_earlier_run_is_not_trained_over_unless_asked) {
  const TinyRun run;
  TrainOptions options = run.options("run");
  train_on_ranks(1, options);
  EXPECT_THAT(problem_of(options), HasSubstr("--overwrite_output_dir"));
  // Whichever of the ranks is heard first.
  EXPECT_THAT(problem_of(options, 2), AnyOf(HasSubstr("--overwrite_output_dir"), HasSubstr("rank 0 failed")));
  options.overwrite_output_dir = true;
  options.context_stages = "16:2";
  EXPECT_EQ(train_on_ranks(1, options).outcome.steps, 2);
  EXPECT_EQ(RunDirectory(options.output_dir).list().size(), 1U);
}

TEST(Trainer, a_run_does_not_remove_the_checkpoint_it_begins_with) {
  const TinyRun run;
  TrainOptions options = run.options("run");
  train_on_ranks(1, options);
  options.overwrite_output_dir = true;
  options.model_dir = RunDirectory(options.output_dir).checkpoint(9);
  EXPECT_THAT(problem_of(options), HasSubstr("which this run begins with and would remove"));
  TrainOptions adapted = run.options("adapted");
  adapted.engine.lora.rank = 2;
  train_on_ranks(1, adapted);
  adapted.overwrite_output_dir = true;
  adapted.engine.lora = {.adapter = RunDirectory(adapted.output_dir).checkpoint(9)};
  EXPECT_THAT(problem_of(adapted), HasSubstr("which this run begins with and would remove"));
  EXPECT_EQ(RunDirectory(options.output_dir).list().size(), 1U);
  options.overwrite_output_dir = false;
  options.resume_from_checkpoint = "true";
  EXPECT_EQ(train_on_ranks(1, options).outcome.steps, 9) << "a resumed run removes none of an earlier one's";
}

TEST(Trainer, resuming_passes_over_a_broken_checkpoint_and_refuses_where_there_is_none) {
  const TinyRun run;
  TrainOptions options = run.options("run");
  options.resume_from_checkpoint = "true";
  EXPECT_THAT(problem_of(options), HasSubstr("auto"));
  options.resume_from_checkpoint = "auto";
  options.save_steps = 4;
  EXPECT_EQ(train_on_ranks(1, options).losses.size(), 9U);
  fs::remove(options.output_dir / "checkpoints" / "step-9" / "rank-00000.safetensors");
  EXPECT_EQ(train_on_ranks(1, options).losses.begin()->first, 9);  // went on from step 8
  EXPECT_EQ(find_checkpoint(options.output_dir, [](const std::string&) {}).step, 9);
}

TEST(Trainer, data_that_cannot_serve_is_refused_before_the_first_step) {
  const TinyRun run(40);
  TrainOptions options = run.options("run");
  options.context_stages = "16:2,64:2";
  EXPECT_THAT(problem_of<DataError>(options), HasSubstr("64"));
  options.context_stages = "16:2,1k:2";
  options.samples.packing.kind = Packing::concat;
  EXPECT_THAT(problem_of(options), HasSubstr("max_position_embeddings"));
  // Packed documents reach no further than the longest of them.
  options.samples.packing.kind = Packing::documents;
  EXPECT_THAT(problem_of<DataError>(options), HasSubstr("one window of 1,024"));
  options = run.options("run");
  options.train_file = run.folder() / "nowhere";
  EXPECT_THAT(problem_of(options), HasSubstr("nowhere"));
  options = run.options("run");
  options.engine.ulysses = 2;
  EXPECT_THAT(problem_of(options), HasSubstr("ulysses x ring may be 1 x 1"));
  options.engine.strict_divisible = true;
  options.context_stages = "15:2";
  EXPECT_THAT(problem_of(options, 2), HasSubstr("not divisible by ulysses degree 2"));
  options = run.options("run");
  options.engine.ulysses = 3;
  options.context_stages = "16:2,2:2";
  EXPECT_THAT(problem_of(options, 3), HasSubstr("2 tokens is shorter than the 3 ranks"));
  options = run.options("run");
  options.samples.mlm_probability = 0.15;
  EXPECT_THAT(problem_of(options), HasSubstr("--mlm_probability"));
  options = run.options("run");
  options.max_steps = 7;
  EXPECT_THAT(problem_of(options), HasSubstr("--max_steps 7"));
}

// The documents of 37 tokens that are trained on stay within the model's 512 positions.
TEST(Trainer, held_out_documents_beyond_the_positions_are_refused) {
  const TinyRun run(2000);
  TrainOptions options = run.options("");
  options.context_stages = "640:1";
  options.warmup_ratio = 0;
  options.eval_file = run.folder() / "long";
  for (const size_t tokens : {size_t{512}, size_t{600}}) {
    options.output_dir = run.folder() / cat("run-", tokens);
    IndexedDatasetWriter writer(options.eval_file, 70);
    for (const size_t document : {tokens, size_t{200}})
      writer.add_document(std::vector<int32_t>(document, 7));  // together a window
    writer.finish();
    if (tokens > 512)
      EXPECT_THAT(problem_of(options), HasSubstr("600 tokens is longer than the 512 positions"));
    else
      EXPECT_EQ(train_on_ranks(1, options).outcome.steps, 1);
  }
}

}  // namespace
}  // namespace trireme
