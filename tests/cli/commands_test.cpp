#include "trireme/cli/commands.h"

#include <cstdlib>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/base/json.h"
#include "trireme/base/nearest_name.h"
#include "trireme/cli/bench.h"
#include "trireme/cli/model_directory.h"
#include "trireme/cli/train.h"

#include "tests/cli/stdout_of.h"
#include "tests/engine/tiny_model.h"
#include "tests/support/error_message.h"
#include "tests/support/words_of.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

template <typename Body>
std::string refusal(const Body& body) {
  return testing::message_of<ConfigError>(body);
}

TEST(NearestName, is_the_one_that_a_slip_of_the_finger_meant) {
  const std::vector<std::string> names{"train", "tokenize", "eval", "max_steps", "save_steps"};
  EXPECT_EQ(nearest_name("trian", names), "train");
  EXPECT_EQ(nearest_name("tokenise", names), "tokenize");
  EXPECT_EQ(nearest_name("steps", names), "max_steps");
  EXPECT_EQ(nearest_name("quantize_it", names), std::nullopt);
}

TEST(Commands, are_found_by_name_and_a_wrong_one_suggests_the_nearest) {
  EXPECT_EQ(find_command("verify").name, "verify");
  EXPECT_THAT(refusal([] { find_command("evla"); }), HasSubstr("'eval'?"));
  EXPECT_THAT(refusal([] { find_command("frobnicate"); }), HasSubstr("--help"));
  for (const Command& command : commands()) EXPECT_THAT(commands_help(), HasSubstr(command.summary));
}

TEST(Commands, each_lists_its_flags) {
  for (const Command& command : commands()) {
    SCOPED_TRACE(command.name);
    EXPECT_GT(testing::stdout_of([&] { return command.run({"--help"}); }).size(), 40U);
  }
}

TEST(Commands, of_several_list_their_parts_and_give_the_rest_of_the_words_to_the_one_that_is_named) {
  static std::vector<std::string> got;
  const auto run = [](const std::vector<std::string>& words) {
    got = words;
    return 7;
  };
  const std::vector<Command> parts{{"loss", "by position", run}, {"needles", "in a haystack", run}};
  EXPECT_EQ(run_one_of("eval", parts, {"needles", "--help", "x"}), 7);
  EXPECT_EQ(got, (std::vector<std::string>{"--help", "x"}));
  EXPECT_THAT(testing::stdout_of([&] { return run_one_of("eval", parts, {"--help"}); }),
              AllOf(HasSubstr("trireme eval loss|needles"), HasSubstr("in a haystack")));
  EXPECT_THAT(refusal([&] { run_one_of("eval", parts, {"lose"}); }),
              HasSubstr("trireme eval lose: expected one of loss, needles"));
}

TEST(Train, flags_that_contradict_or_do_not_exist_are_refused_by_name) {
  const std::vector<std::string> base{"--model_name_or_path", "m", "--train_file", "t"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), base.begin(), base.end());
    return refusal([&] { run_train(more); });
  };
  EXPECT_THAT(with({"--fp16", "--bf16"}), HasSubstr("contradict"));
  EXPECT_THAT(with({"--packing", "document"}), HasSubstr("'documents'?"));
  EXPECT_THAT(with({"--ds_config", "ds.json"}), HasSubstr("--deepspeed ds_config.json"));
  EXPECT_THAT(refusal([] { run_train({"--model_name_or_path", "m"}); }), HasSubstr("needs --train_file"));
}

TEST(Train, recompute_auto_takes_no_fraction_and_a_budget_no_other_policy) {
  const testing::TemporaryFolder folder;
  testing::write_tiny_model(folder.path() / "model", testing::tiny_llama_config());
  const std::string model = (folder.path() / "model").string(), out = (folder.path() / "out").string();
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(),
                {"--model_name_or_path", model, "--train_file", "t", "--output_dir", out, "--device", "cpu"});
    return refusal([&] { run_train(more); });
  };
  EXPECT_THAT(with({"--recompute", "auto", "--keep_fraction", "0.5"}),
              HasSubstr("give --recompute keep_attention with it"));
  EXPECT_THAT(with({"--keep_fraction", "0.5"}), HasSubstr("give --recompute keep_attention with it"));
  EXPECT_THAT(with({"--gradient_checkpointing", "--recompute", "auto"}), HasSubstr("contradict"));
  EXPECT_THAT(with({"--gradient_checkpointing", "--memory_budget", "1g"}), HasSubstr("--recompute is full"));
  EXPECT_THAT(with({"--recompute", "autto"}), HasSubstr("'auto'?"));
  EXPECT_THAT(with({"--recompute", "keep_atention"}), HasSubstr("'keep_attention'?"));
}

// The line for programs has the policy that was done, not "auto".
TEST(Bench, a_step_reports_the_recompute_policy_that_fits) {
  const testing::TemporaryFolder folder;
  testing::write_tiny_model(folder.path(), testing::tiny_llama_config(), 0.05);
  std::vector<std::string> words = testing::words_of(
      "step --seq 64 --steps 1 --warmup 0 --device cpu --threads 1 --memory_budget 1 --json --model");
  words.push_back(folder.path().string());
  const Json line = Json::parse(testing::stdout_of([&] { return run_bench(words); }));
  EXPECT_EQ(line.at("recompute"), "full");
  EXPECT_EQ(line.at("keep_fraction"), 1);
  EXPECT_THAT(line.at("engine").get<std::string>(), HasSubstr("though the formulas expect"));
}

class ModelDirectory : public ::testing::Test {
 protected:
  ModelDirectory() {
    ::setenv("HF_HOME", folder_.path().c_str(), 1);
    ::unsetenv("HF_HUB_CACHE");
  }
  ~ModelDirectory() override { ::unsetenv("HF_HOME"); }
  testing::TemporaryFolder folder_;
};

TEST_F(ModelDirectory, a_name_is_looked_up_in_the_cache_at_its_main_revision) {
  const fs::path model = folder_.path() / "hub" / "models--org--name";
  fs::create_directories(model / "refs");
  fs::create_directories(model / "snapshots" / "abc");
  std::ofstream(model / "refs" / "main") << "abc";
  std::ofstream(model / "snapshots" / "abc" / "config.json") << "{}";
  EXPECT_EQ(find_model_directory("org/name"), model / "snapshots" / "abc");
  EXPECT_EQ(find_model_directory((model / "snapshots" / "abc").string()), model / "snapshots" / "abc");
}

TEST_F(ModelDirectory, one_that_is_not_there_gives_the_command_that_downloads_it) {
  EXPECT_THAT(refusal([] { find_model_directory("org/name"); }), HasSubstr("hf download org/name"));
  EXPECT_THAT(refusal([] { find_model_directory("/no/such/folder"); }),
              AllOf(HasSubstr("/no/such/folder"), Not(HasSubstr("download"))));
  EXPECT_THAT(refusal([&] { find_model_directory(folder_.path().string()); }), HasSubstr("config.json"));
  for (const char* name : {"org", "org/", "/name", "org/a/b", "org/-name", ".org/name", "org/na me"})
    EXPECT_THAT(refusal([&] { find_model_directory(name); }), Not(HasSubstr("download"))) << name;
  for (const char* name : {"o/n", "0-org_/9.name-x"})
    EXPECT_THAT(refusal([&] { find_model_directory(name); }), HasSubstr("download")) << name;
}

TEST_F(ModelDirectory, a_name_of_any_length_is_refused_in_a_short_message) {
  const std::string long_name(100'000, 'n');
  for (const auto& find : {find_model_directory, find_tokenizer})
    for (const std::string& name : {long_name, "org/" + long_name}) {
      const std::string message = refusal([&] { find(name); });
      EXPECT_THAT(message, HasSubstr("there is no folder"));
      EXPECT_LT(message.size(), 2000U);
    }
}

}  // namespace
}  // namespace trireme
