// `trireme plan --explain_oom`: the run that is explained is the one that was told, by flags, by a run's
// folder or by a DeepSpeed file, and the first set of changes makes it fit.
#include "trireme/cli/explain_oom.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/cli/plan.h"
#include "trireme/train/train_options.h"

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"

namespace fs = std::filesystem;

namespace trireme::explain_oom_test {
namespace {

using ::testing::HasSubstr;
using Words = std::vector<std::string>;

class ExplainOom : public ::testing::Test {
 protected:
  fs::path write(const std::string& name, const std::string& text) const {
    fs::create_directories((folder_.path() / name).parent_path());
    std::ofstream(folder_.path() / name) << text;
    return folder_.path() / name;
  }
  // Of 8 H100.
  static Words asked(const Words& more) {
    Words words{"--gpu", "h100-80gb", "--gpus", "8"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  static Json answer(Words words, int expected_code) {
    words.emplace_back("--json");
    ::testing::internal::CaptureStdout();
    const int code = run_plan(asked(words));
    const std::string text = ::testing::internal::GetCapturedStdout();
    EXPECT_EQ(code, expected_code);
    return parse_json(text, "answer");
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

TEST_F(ExplainOom, the_first_set_of_changes_given_as_flags_fits) {
  const Json before = answer(with(kLlama, {"--zero", "1", "--recompute", "full", "--explain_oom"}), 0);
  EXPECT_EQ(before["fits"], false);
  ASSERT_FALSE(before["sets"].empty());
  std::istringstream flags(before["sets"][0]["flags"].get<std::string>());
  Words changed = with(kLlama, {"--recompute", "full", "--explain_oom"});
  for (std::string word; flags >> word;) changed.push_back(word);
  EXPECT_THAT(changed, ::testing::Contains("--zero"));
  const Json after = answer(changed, 0);
  EXPECT_EQ(after["fits"], true);
  EXPECT_EQ(after["cost"]["device_bytes"], before["sets"][0]["cost"]["device_bytes"]);
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
  write("run/config.json", to_json(options).dump());
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
    write("run/config.json", to_json(options).dump());
    write("run/metrics.jsonl", metrics);
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
      "39.39 GiB of "
      "which 1.02 GiB is free. Of the allocated memory 36.20 GiB is allocated by PyTorch, and 0.10 GiB is "
      "reserved by "
      "PyTorch but unallocated.";
  const fs::path file = write("traceback.txt", message);
  const Words words = with(kLlama, {"--zero", "3"});
  const Json told = answer(with(words, {"--explain_oom", file.string()}), 0);
  EXPECT_EQ(told["error"]["asked_bytes"], int64_t{2} << 30);
  EXPECT_EQ(told["fits"], false);  // of a device of 39 GiB, which the profile does not have
  EXPECT_EQ(answer(with(words, {"--explain_oom"}), 0)["fits"], true);
}

TEST_F(ExplainOom, refuses_what_tells_nothing) {
  const fs::path file = write("other.txt", "ValueError: nothing about it\n");
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
