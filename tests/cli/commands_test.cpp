#include "trireme/cli/commands.h"

#include <cstdlib>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/cli/model_directory.h"
#include "trireme/cli/nearest_name.h"
#include "trireme/cli/train.h"

#include "tests/engine/tiny_model.h"
#include "tests/support/error_message.h"

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
    ::testing::internal::CaptureStdout();
    EXPECT_EQ(command.run({"--help"}), 0) << command.name;
    EXPECT_GT(::testing::internal::GetCapturedStdout().size(), 40U) << command.name;
  }
}

TEST(Train, flags_that_contradict_or_do_not_exist_are_refused_by_name) {
  const std::vector<std::string> base{"--model_name_or_path", "m", "--train_file", "t"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), base.begin(), base.end());
    return refusal([&] { run_train(more); });
  };
  EXPECT_THAT(with({"--fp16", "--bf16"}), HasSubstr("contradict"));
  EXPECT_THAT(with({"--packing", "document"}), HasSubstr("'documents'?"));
  EXPECT_THAT(with({"--deepspeed", "ds.json"}), HasSubstr("no flag --deepspeed"));
  EXPECT_THAT(refusal([] { run_train({"--model_name_or_path", "m"}); }), HasSubstr("needs --train_file"));
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
}

}  // namespace
}  // namespace trireme
