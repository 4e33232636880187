// Flags that guides to other programs use are answered by name, and the page about them says the same.
#include "trireme/cli/foreign_flags.h"

#include <cstdlib>
#include <fstream>
#include <regex>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/base/joined.h"
#include "trireme/cli/bench.h"
#include "trireme/cli/eval.h"
#include "trireme/cli/export.h"
#include "trireme/cli/init.h"
#include "trireme/cli/launch.h"
#include "trireme/cli/tokenize.h"
#include "trireme/cli/train.h"
#include "trireme/cli/verify.h"
#include "trireme/launch/launch.h"
#include "trireme/shard/optimizer.h"

#include "tests/support/error_message.h"
#include "tests/support/file_bytes.h"
#include "tests/support/source_folder.h"
#include "tests/support/temporary_folder.h"

namespace trireme::foreign_flags_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

template <typename Flags>
std::vector<std::string> names_of() {
  return Declared<Flags>("").parser.names();
}

std::vector<ForeignFlags> foreign_flags() {
  std::vector<ForeignFlags> all;
  for (const ForeignProgram& program : foreign_programs())
    all.insert(all.end(), program.flags.begin(), program.flags.end());
  return all;
}

std::string refusal(const std::vector<std::string>& words) {
  return testing::message_of<ConfigError>([&] { run_train(words); });
}

TEST(ForeignFlags, are_answered_by_name_and_never_by_the_nearest) {
  const std::vector<std::string> of_train = names_of<TrainFlags>();
  for (const ForeignFlags& flags : foreign_flags())
    for (const std::string& name : flags.names) {
      EXPECT_EQ(std::count(of_train.begin(), of_train.end(), name), 0) << name << " is a flag of train";
      EXPECT_THAT(refusal({"--" + name, "x"}), AllOf(HasSubstr("no flag --" + name + ": " + flags.answer),
                                                     Not(HasSubstr("did you mean"))));
    }
  EXPECT_THAT(refusal({"--attn-implementation=sdpa"}),
              HasSubstr("--attention auto|flash|flash4|cudnn|cudnn_packed|tiles|reference"));
  EXPECT_THAT(refusal({"--per_device_eval_batch_size", "8"}), Not(HasSubstr("train_batch_size")));
  EXPECT_THAT(refusal({"--learningrate", "8"}), HasSubstr("did you mean --learning_rate?"));
}

TEST(ForeignFlags, have_one_answer_each_of_one_line_without_a_full_stop) {
  std::set<std::string> met;
  for (const ForeignFlags& flags : foreign_flags()) {
    for (const std::string& name : flags.names) EXPECT_TRUE(met.insert(name).second) << name << " twice";
    EXPECT_EQ(flags.answer.find('\n'), std::string::npos) << flags.answer;
    EXPECT_TRUE(flags.answer.back() != '.' || flags.answer.ends_with(" ...")) << flags.answer;
  }
  EXPECT_GT(met.size(), 200U);
}

TEST(ForeignFlags, are_answered_with_flags_that_exist) {
  std::set<std::string> known;
  for (const auto& names : {names_of<TrainFlags>(), names_of<EvalFlags>(), names_of<VerifyFlags>(),
                            names_of<ExportFlags>(), names_of<TokenizeFlags>(), names_of<InitFlags>()})
    known.insert(names.begin(), names.end());
  const std::regex flag("--([a-z0-9_]+)");
  const auto flags_in = [&](const std::string& text) {
    std::set<std::string> found;
    for (std::sregex_iterator at(text.begin(), text.end(), flag), end; at != end; ++at)
      found.insert((*at)[1]);
    return found;
  };
  LaunchOptions launch;
  OptionParser parser("launch", "");
  list_launch_options(parser, launch);
  for (const std::string& name : parser.names()) known.insert(name);
  for (const ForeignFlags& flags : foreign_flags())
    for (const std::string& name : flags_in(flags.answer))
      EXPECT_TRUE(known.contains(name)) << "--" << name << " in: " << flags.answer;
  for (const ForeignValues& values : foreign_values()) {
    for (const std::string& name : values.options) EXPECT_TRUE(known.contains(name)) << name;
    for (const std::string& name : flags_in(values.answer)) EXPECT_TRUE(known.contains(name)) << name;
  }
}

TEST(ForeignFlags, of_launchers_are_answered_by_launch_too) {
  const auto refused = [](const std::vector<std::string>& words) {
    return testing::message_of<ConfigError>([&] { run_launch(words); });
  };
  EXPECT_THAT(refused({"--standalone", "--nproc_per_node", "2", "--", "info"}),
              HasSubstr("launch has no flag --standalone: "));
  EXPECT_THAT(refused({"--nproc_per_node", "2", "--rdzv-backend=c10d", "--", "info"}),
              HasSubstr("--master_addr"));
  EXPECT_THAT(refused({"--num_gpus=32", "--num_processes=32", "train"}), HasSubstr("--nproc_per_node N"));
}

TEST(ForeignFlags, have_values_that_are_answered_too) {
  for (const char* const option : {"save_steps", "eval_steps", "logging_steps"})
    EXPECT_EQ(refusal({cat("--", option), "0.1"}),
              cat("--", option, " is '0.1': a share of the run is not built: give steps"));
  EXPECT_THAT(refusal({"--save_steps", "1.5"}), HasSubstr("'1.5' is not a whole number"));
  EXPECT_THAT(refusal({"--optim", "paged_adamw_8bit"}), HasSubstr("not built: --optim is adamw_torch"));
  EXPECT_THAT(refusal({"--report_to", "wandb"}), HasSubstr("not built: metrics are in metrics.jsonl"));
  const testing::TemporaryFolder folder;
  const auto file = folder.write("run.yaml", "save_steps: 0.5\n");
  EXPECT_THAT(refusal({"--config", file.string()}),
              HasSubstr("run.yaml: save_steps: --save_steps is '0.5': a share"));
}

TEST(ForeignFlags, have_a_fused_adamw_that_is_adamw) {
  Declared<TrainFlags> train("train");
  train.parser.parse({"--optim", "adamw_torch_fused", "--model_name_or_path", "m", "--train_file", "f"});
  EXPECT_EQ(train.flags.options.engine.optimizer.kind, &find_optimizer("adamw_torch"));
  EXPECT_EQ(train.parser.find("optim").read(), "adamw_torch");
}

std::string foreign_flags_page() {
  std::string page =
      "# Flags from elsewhere\n\n"
      "Flags of `trireme train` carry the names of Hugging Face's `TrainingArguments` where both have them, "
      "and [options](options.md) lists them. Other flags of the guides to Trainer, TRL, DeepSpeed, torchrun "
      "and Megatron-LM are below, each with its counterpart here; the program gives the same answer.\n";
  for (const ForeignProgram& program : foreign_programs()) {
    page += cat("\n## ", program.name, "\n\n| flag | here |\n|---|---|\n");
    for (const ForeignFlags& flags : program.flags) {
      std::string answer;
      for (const char letter : flags.answer)
        answer += letter == '|' ? std::string("\\|") : std::string(1, letter);
      page += cat("| `--", joined(flags.names, "`, `--"), "` | ", answer, " |\n");
    }
  }
  page += "\n## Values of flags that both have\n\n| value | here |\n|---|---|\n";
  for (const ForeignValues& each : foreign_values())
    page += cat("| `--", joined(each.options, "`, `--"), "` ",
                each.values.empty() ? "below 1" : cat("`", joined(each.values, "`, `"), "`"), " | ",
                each.answer, " |\n");
  return page;
}

// TRIREME_WRITE_PAGES=1 writes the page anew.
TEST(ForeignFlags, have_a_page_made_of_the_same_list) {
  const auto page = testing::source_folder() / "docs/from-huggingface.md";
  if (std::getenv("TRIREME_WRITE_PAGES") != nullptr) std::ofstream(page) << foreign_flags_page();
  EXPECT_EQ(testing::bytes_of(page), foreign_flags_page())
      << "write it anew: TRIREME_WRITE_PAGES=1 build/cpu/bin/cli_test --gtest_filter=ForeignFlags.*";
}

}  // namespace
}  // namespace trireme::foreign_flags_test
