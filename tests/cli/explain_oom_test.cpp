// `trireme plan --explain_oom`: the run that is explained is the one that was told, by flags, by a run's
// folder or by a DeepSpeed file, and each set of changes makes it fit.
#include "trireme/cli/explain_oom.h"

#include <algorithm>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/cli/plan.h"
#include "trireme/train/train_options.h"

#include "tests/cli/stdout_of.h"
#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/words_of.h"

namespace fs = std::filesystem;

namespace trireme::explain_oom_test {
namespace {

using ::testing::HasSubstr;
using Words = std::vector<std::string>;

class ExplainOom : public ::testing::Test {
 protected:
  // Of 8 H100.
  static Words asked(const Words& more) {
    Words words{"--gpu", "h100-80gb", "--gpus", "8"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  static Json answer(const Words& words, int expected_code) { return answer_of(asked(words), expected_code); }
  static Json answer_of(Words words, int expected_code) {
    words.emplace_back("--json");
    return parse_json(testing::stdout_of([&] { return run_plan(words); }, expected_code), "answer");
  }

  testing::TemporaryFolder folder_;
};

const Words kLlama{
    "--model", "llama3-8b", "--max_seq_length", "256k", "--ulysses", "4", "--per_device_train_batch_size",
    "1"};

Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// `run` with these flags in place of its own of the same names.
Words changed(const Words& run, const Words& flags) {
  Words words;
  bool replaced = false;
  for (const std::string& word : run) {
    if (word.starts_with("--")) replaced = std::ranges::find(flags, word) != flags.end();
    if (!replaced) words.push_back(word);
  }
  return with(words, flags);
}

// Each run has a policy: `auto` fills the memory that a set of changes leaves free.
TEST_F(ExplainOom, each_set_of_changes_given_as_flags_takes_what_was_told_and_fits) {
  for (const char* run : {
           "--model llama3-8b --gpu h100-80gb --gpus 8 --max_seq_length 256k --ulysses 4 --zero 1 "
           "--per_device_train_batch_size 1 --recompute none",
           // More micro-batches, of gradients that leave in backward.
           "--model gemma2-27b --gpu h100-80gb --gpus 8 --max_seq_length 128k --ulysses 4 --zero 2 "
           "--per_device_train_batch_size 2 --offload_optimizer cpu --recompute full",
           "--model gemma4-e4b --gpu h100-80gb --gpus 8 --max_seq_length 256k --ring 2 --zero 2 "
           "--per_device_train_batch_size 2 --recompute full",
           // Of three Ulysses ranks another than the first is the fullest.
           "--model ministral3-8b --gpu a100-80gb --gpus 6 --max_seq_length 65536 --ring 2 "
           "--host_memory_limit 200g --per_device_train_batch_size 8 --recompute none "
           "--gradient_accumulation_steps 4",
           "--model qwen3.5-9b --gpu h100-80gb --gpus 6 --max_seq_length 512k --ring 2 --recompute full",
           // Shares that stay in force unless others are given.
           "--model llama3-8b --gpu h100-80gb --gpus 8 --max_seq_length 160k --ulysses 8 --zero 3 "
           "--per_device_train_batch_size 1 --recompute keep_attention --keep_qkv_fraction 1 "
           "--keep_mlp_fraction 1",
           "--model llama3-8b --gpu h100-80gb --gpus 8 --max_seq_length 512k --ulysses 8 --zero 3 "
           "--per_device_train_batch_size 1 --recompute none --keep_fraction 0.5",
           "--model qwen2-7b --gpu a100-40gb --gpus 8 --max_seq_length 262146 --ulysses 2 --zero 3 "
           "--per_device_train_batch_size 1 --recompute keep_attention --strict_divisible",
           // A host that has no room for what all layers but two keep.
           "--model llama3-8b --gpu h100-80gb --gpus 8 --max_seq_length 256k --zero 3 "
           "--per_device_train_batch_size 1 --recompute keep_attention --offload_activations cpu "
           "--host_memory_limit 200g",
       }) {
    SCOPED_TRACE(run);
    const Words words = with(testing::words_of(run), {"--explain_oom"});
    const Json before = answer_of(words, 0);
    EXPECT_EQ(before["fits"], false);
    ASSERT_FALSE(before["sets"].empty());
    for (const Json& set : before["sets"]) {
      const std::string flags = set["flags"];
      SCOPED_TRACE(flags);
      const Json after = answer_of(changed(words, testing::words_of(flags)), 0);
      EXPECT_EQ(after["fits"], true);
      EXPECT_EQ(after["cost"], set["cost"]);
    }
  }
}

TEST_F(ExplainOom, a_policy_that_is_given_is_that_of_all_layers) {
  const Words run = with(kLlama, {"--zero", "1", "--recompute", "keep_attention", "--explain_oom"});
  EXPECT_EQ(answer(run, 0), answer(with(run, {"--keep_fraction", "1"}), 0));
}

TEST_F(ExplainOom, what_is_not_given_is_what_train_takes) {
  const TrainOptions defaults;
  const Words bare{"--model", "llama3-8b", "--max_seq_length", "8k", "--explain_oom"};
  const Words told = with(
      bare, {"--zero", std::to_string(static_cast<int>(defaults.engine.zero)), "--ulysses", "1", "--ring",
             "1", "--per_device_train_batch_size", std::to_string(defaults.per_device_train_batch_size),
             "--gradient_accumulation_steps", "1", "--offload_optimizer", "none"});
  EXPECT_EQ(answer(bare, 0), answer(told, 0));
}

TEST_F(ExplainOom, a_run_s_folder_tells_its_options_and_flags_beat_them) {
  TrainOptions options;
  options.model_dir = "llama3-8b";
  options.samples.max_seq_length = 262144;
  options.per_device_train_batch_size = 1;
  options.engine.ulysses = 4;
  options.engine.zero = ZeroStage::optimizer;
  options.engine.precision = Precision::bf16;
  folder_.write("run/config.json", to_json(options).dump());
  const std::string run = (folder_.path() / "run").string();
  EXPECT_EQ(answer({"--run", run, "--explain_oom"}, 0),
            answer(with(kLlama, {"--zero", "1", "--explain_oom"}), 0));
  EXPECT_EQ(answer({"--run", run, "--zero", "3", "--explain_oom"}, 0),
            answer(with(kLlama, {"--zero", "3", "--explain_oom"}), 0));
}

TEST_F(ExplainOom, of_a_run_of_stages_explains_the_one_that_it_was_in_else_the_fullest_and_says_so) {
  TrainOptions options;
  options.model_dir = "llama3-8b";
  options.per_device_train_batch_size = 1;
  options.engine.precision = Precision::bf16;
  const fs::path run = folder_.path() / "run";
  const auto explained = [&](const std::string& stages, const std::string& metrics) {
    options.context_stages = stages;
    folder_.write("run/config.json", to_json(options).dump());
    folder_.write("run/metrics.jsonl", metrics);
    return answer({"--run", run.string(), "--explain_oom"}, 0);
  };
  const auto of_stage = [&](const char* tokens, const char* ranks, const char* zero) {
    return answer({"--model", "llama3-8b", "--max_seq_length", tokens, "--ulysses", ranks, "--zero", zero,
                   "--per_device_train_batch_size", "1", "--explain_oom"},
                  0);
  };
  const std::string list = R"([{"max_seq_length": "32k", "steps": 4, "sp": 2},
                               {"max_seq_length": "256k", "steps": 4, "sp": 4, "zero": 1},
                               {"max_seq_length": "64k", "steps": 4, "zero": 3}])";
  EXPECT_EQ(explained(list, ""), of_stage("256k", "4", "1"));
  EXPECT_EQ(explained(list, "{\"step\": 3}\n"), of_stage("32k", "2", "0"));
  // Of the stage that begins after its last step.
  EXPECT_EQ(explained(list, "{\"step\": 7}\n{\"step\": 8}\n{\"step\": 9, \"lo"), of_stage("64k", "4", "3"));
  options.engine.ulysses = 4;
  options.engine.zero = ZeroStage::parameters;
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(explained("32k:4,256k:4", "{\"step\": 5}\n"), of_stage("256k", "4", "3"));
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      ::testing::AllOf(HasSubstr("stage 2 of 2"), HasSubstr("after step 5"), HasSubstr("--max_seq_length")));
}

TEST_F(ExplainOom, a_message_tells_the_device_and_what_was_asked_for) {
  const std::string message =
      "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
      "39.39 GiB of which 1.02 GiB is free. Of the allocated memory 36.20 GiB is allocated by PyTorch, and "
      "0.10 GiB is reserved by PyTorch but unallocated.";
  const fs::path file = folder_.write("traceback.txt", message);
  const Words words = with(kLlama, {"--zero", "3"});
  const Json told = answer(with(words, {"--explain_oom", file.string()}), 0);
  EXPECT_EQ(told["error"]["asked_bytes"], int64_t{2} << 30);
  EXPECT_EQ(told["fits"], false);  // of a device of 39 GiB, which the profile does not have
  EXPECT_EQ(answer(with(words, {"--explain_oom"}), 0)["fits"], true);
}

TEST_F(ExplainOom, refuses_what_tells_nothing) {
  const fs::path file = folder_.write("other.txt", "ValueError: nothing about it\n");
  EXPECT_THAT(testing::message_of<DataError>([&] {
                run_plan(asked(with(kLlama, {"--explain_oom", file.string()})));
              }),
              HasSubstr("other.txt"));
  EXPECT_THAT(testing::message_of<ConfigError>([&] {
                run_plan(asked({"--model", "llama3-8b", "--explain_oom"}));
              }),
              HasSubstr("--max_seq_length"));
  EXPECT_THAT(testing::message_of<ConfigError>([&] {
                run_plan(asked(with(kLlama, {"--run", folder_.path().string()})));
              }),
              HasSubstr("--explain_oom"));
  EXPECT_THAT(testing::message_of<DataError>([&] {
                run_plan(asked({"--run", (folder_.path() / "nowhere").string(), "--explain_oom"}));
              }),
              HasSubstr("config.json"));
}

}  // namespace
}  // namespace trireme::explain_oom_test
