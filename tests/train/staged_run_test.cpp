// Runs whose stages differ in more than length: whole runs, in threads.
#include <cmath>
#include <cstring>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/data/indexed_dataset_writer.h"
#include "trireme/model/model_config.h"
#include "trireme/train/run_directory.h"

#include "tests/support/source_folder.h"
#include "tests/train/tiny_run.h"

namespace fs = std::filesystem;

namespace trireme::staged_run_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::problem_of;
using testing::tensors_of;
using testing::TinyOutcome;
using testing::TinyRun;
using testing::train_on_ranks;

constexpr const char* kPlain = R"([{"max_seq_length": 16, "steps": 5}, {"max_seq_length": 32, "steps": 4}])";
// From two groups of ranks that take samples of their own to one that shares each.
constexpr const char* kOverlays = R"([{"max_seq_length": 16, "steps": 5},
    {"max_seq_length": 32, "steps": 4, "sp": 2, "zero": 3, "offload_optimizer": "cpu", "tile_tokens": 8}])";

TrainOptions options_of(const TinyRun& run, const std::string& name, const std::string& stages) {
  TrainOptions options = run.options(name);
  options.context_stages = stages;
  options.warmup_ratio = 0;
  return options;
}

void expect_same(const TinyOutcome& got, const TinyOutcome& expected) {
  EXPECT_EQ(got.losses, expected.losses);
  EXPECT_EQ(tensors_of(got.outcome.checkpoint), tensors_of(expected.outcome.checkpoint));
}

TEST(StagedRun, a_list_without_overlays_is_bitwise_the_short_form) {
  const TinyRun run;
  const TinyOutcome list = train_on_ranks(2, options_of(run, "list", kPlain));
  expect_same(list, train_on_ranks(2, options_of(run, "text", "16:5,32:4")));
  EXPECT_THAT(list.output, AllOf(Not(HasSubstr("anew")), HasSubstr("length 16 -> 32: the loss was ")));
}

TEST(StagedRun, another_topology_from_a_stage_on_computes_the_same) {
  const TinyRun run;
  TrainOptions options = options_of(run, "plain", kPlain);
  options.engine.optimizer.kind = &find_optimizer("sgd");
  options.keep_global_batch = true;
  const TinyOutcome plain = train_on_ranks(2, options);
  options.output_dir = run.folder() / "overlays";
  options.context_stages = R"([{"max_seq_length": 16, "steps": 5},
      {"max_seq_length": 32, "steps": 4, "sp": 2, "zero": 3, "recompute": "full"}])";
  const TinyOutcome overlays = train_on_ranks(2, options);
  EXPECT_THAT(overlays.output,
              AllOf(HasSubstr("stage 2 has recompute "), HasSubstr("ulysses 1 -> 2, zero 0 -> 3"),
                    HasSubstr("assembled anew"), HasSubstr("step-5"), HasSubstr("ZeRO 3")));
  ASSERT_EQ(overlays.losses.size(), plain.losses.size());
  for (const auto& [step, loss] : plain.losses) EXPECT_NEAR(overlays.losses.at(step), loss, 1e-4) << step;
  const auto expected = tensors_of(plain.outcome.checkpoint);
  for (const auto& [name, bytes] : tensors_of(overlays.outcome.checkpoint)) {
    const std::string& other = expected.at(name);
    ASSERT_EQ(bytes.size(), other.size());
    for (size_t at = 0; at < bytes.size(); at += sizeof(float)) {
      float a = 0, b = 0;
      std::memcpy(&a, bytes.data() + at, sizeof(float));
      std::memcpy(&b, other.data() + at, sizeof(float));
      ASSERT_NEAR(a, b, 1e-4) << name;
    }
  }
}

// What is said of the change of length.
std::string change_of(const std::string& output) {
  const size_t begin = output.find("length 16 -> 32");
  return begin == std::string::npos ? "" : output.substr(begin, output.find('\n', begin) - begin);
}

// Stops inside the first stage, at the border, and inside the second.
TEST(StagedRun, resumes_bitwise_wherever_it_stopped) {
  const TinyRun run(170);
  const TinyOutcome straight = train_on_ranks(2, options_of(run, "straight", kOverlays));
  EXPECT_THAT(change_of(straight.output), HasSubstr("over the first 4 steps"));
  for (const int64_t stop : {2, 5, 7}) {
    SCOPED_TRACE(stop);
    TrainOptions options = options_of(run, cat("stopped-", stop), kOverlays);
    const TinyOutcome first = train_on_ranks(2, options, stop);
    EXPECT_EQ(first.outcome.steps, stop);
    options.resume_from_checkpoint = "true";
    TinyOutcome second = train_on_ranks(2, options);
    EXPECT_THAT(second.output, Not(HasSubstr("changed option")));
    EXPECT_EQ(change_of(second.output), change_of(straight.output));
    second.losses.insert(first.losses.begin(), first.losses.end());
    expect_same(second, straight);
  }
}

TEST(StagedRun, rope_of_a_stage_stands_in_its_checkpoints_and_is_kept_on_resume) {
  const TinyRun run;
  TrainOptions options = options_of(run, "run", R"([{"max_seq_length": 16, "steps": 2},
                                 {"max_seq_length": 32, "steps": 3, "rope_scaling": "yarn:4"}])");
  options.save_steps = 2;
  const TinyOutcome outcome = train_on_ranks(1, options, 3);
  EXPECT_THAT(outcome.output, HasSubstr("rope yarn x 4 of 512 positions, theta 10000: 2,048 positions"));
  const RunDirectory folder(options.output_dir);
  EXPECT_EQ(read_model_config(folder.checkpoint(2)).rope.kind, RopeKind::standard);
  const ModelConfig saved = read_model_config(folder.checkpoint(3));
  EXPECT_EQ(saved.rope.kind, RopeKind::yarn);
  EXPECT_EQ(saved.rope.factor, 4);
  EXPECT_EQ(saved.rope.original_max_position_embeddings, 512);
  EXPECT_EQ(saved.max_position_embeddings, 2048);
  TrainOptions other = options;
  other.resume_from_checkpoint = "true";
  other.context_stages = R"([{"max_seq_length": 16, "steps": 2}, {"max_seq_length": 32, "steps": 3}])";
  EXPECT_THAT(problem_of(other),
              AllOf(HasSubstr("rope_type \"yarn\" -> \"default\""), HasSubstr("--rope_scaling")));
  options.resume_from_checkpoint = "true";
  EXPECT_EQ(train_on_ranks(1, options).outcome.steps, 5);
  // It changes what is computed.
  other.resume_from_checkpoint.clear();
  other.output_dir = run.folder() / "other";
  EXPECT_GT(std::abs(train_on_ranks(1, other).losses.at(3) - outcome.losses.at(3)), 1e-4);
}

TEST(StagedRun, positions_are_those_of_the_stage) {
  const TinyRun run(1500);
  TrainOptions options =
      options_of(run, "run", R"([{"max_seq_length": 16, "steps": 1}, {"max_seq_length": 640, "steps": 1}])");
  options.samples.packing.kind = Packing::concat;
  EXPECT_THAT(problem_of(options), AllOf(HasSubstr("640 tokens is longer than the 512 positions"),
                                         HasSubstr("--rope_scaling yarn:2")));
  options.context_stages = R"([{"max_seq_length": 16, "steps": 1},
                               {"max_seq_length": 640, "steps": 1, "rope_theta": 1e6}])";
  const TinyOutcome outcome = train_on_ranks(1, options);
  EXPECT_EQ(read_model_config(outcome.outcome.checkpoint).max_position_embeddings, 640);
  // One flag for the whole run.
  options.context_stages = "640:1";
  options.engine.rope.scaling = "yarn:2";
  options.output_dir = run.folder() / "flag";
  EXPECT_EQ(train_on_ranks(1, options).outcome.steps, 1);
}

TEST(StagedRun, trains_on_the_data_of_each_stage) {
  const TinyRun run;
  const fs::path code = run.folder() / "code";
  IndexedDatasetWriter writer(code, 70);
  for (int document = 0; document < 8; ++document) writer.add_document(std::vector<int32_t>(40, 7));
  writer.finish();
  const std::string stages =
      cat(R"([{"max_seq_length": 16, "steps": 3}, {"max_seq_length": 32, "steps": 6, "train_file": ")",
          code.string(), R"("}])");
  TrainOptions options = options_of(run, "run", stages);
  const TinyOutcome whole = train_on_ranks(1, options);
  EXPECT_LT(whole.losses.at(9), 0.6 * whole.losses.at(4));  // one token over and over
  const Json state = read_json(whole.outcome.checkpoint / "trainer_state.json");
  EXPECT_EQ(state["data"]["train"]["path"], code.string());
  options.output_dir = run.folder() / "stopped";
  train_on_ranks(1, options, 5);
  options.resume_from_checkpoint = "true";
  const TinyOutcome resumed = train_on_ranks(1, options);
  EXPECT_EQ(tensors_of(resumed.outcome.checkpoint), tensors_of(whole.outcome.checkpoint));
  options.resume_from_checkpoint.clear();
  options.output_dir = run.folder() / "nowhere";
  options.context_stages = R"([{"steps": 1}, {"steps": 1, "train_file": "nowhere"}])";
  options.samples.max_seq_length = 16;
  EXPECT_THAT(problem_of(options), HasSubstr("nowhere"));
}

TEST(StagedRun, goes_on_without_the_texts_of_all_its_stages) {
  const auto some_words = [](int first) {
    std::string text;
    for (int i = 0; i < 400; ++i) text += cat("word", (i * i + first) % 97, " ");
    return text;
  };
  const TinyRun run;
  TrainOptions options = run.with_text(
      "whole", some_words(1), testing::source_folder() / "tests/tokenizer/fixtures/gpt2_tokenizer.json");
  const fs::path second = run.folder() / "second.txt";
  std::ofstream(second) << some_words(2);
  options.warmup_ratio = 0;
  options.context_stages =
      cat(R"([{"max_seq_length": 16, "steps": 4}, {"max_seq_length": 32, "steps": 4, "train_file": ")",
          second.string(), R"("}])");
  const TinyOutcome whole = train_on_ranks(1, options);
  const std::vector<int> steps{2, 6};  // of the first stage and of the second
  for (const int step : steps) {
    options.output_dir = run.folder() / cat("stopped at ", step);
    train_on_ranks(1, options, step);
  }
  fs::remove(run.text());
  fs::remove(second);
  options.resume_from_checkpoint = "true";
  for (const int step : steps) {
    options.output_dir = run.folder() / cat("stopped at ", step);
    const TinyOutcome resumed = train_on_ranks(1, options);
    EXPECT_EQ(tensors_of(resumed.outcome.checkpoint), tensors_of(whole.outcome.checkpoint)) << step;
    EXPECT_THAT(resumed.output, AllOf(HasSubstr(cat("the text ", run.text().string(), " is gone")),
                                      HasSubstr(cat("the text ", second.string(), " is gone"))));
  }
}

TEST(StagedRun, a_stage_that_cannot_be_is_named_before_the_first_step) {
  const TinyRun run;
  EXPECT_THAT(problem_of(options_of(run, "run", R"([{"max_seq_length": 16, "steps": 1},
                                                    {"steps": 1, "offload_params": "cpu"}])")),
              AllOf(HasSubstr("stage 2"), HasSubstr("--offload_params")));
  EXPECT_FALSE(fs::exists(run.folder() / "run"));
}

}  // namespace
}  // namespace trireme::staged_run_test
