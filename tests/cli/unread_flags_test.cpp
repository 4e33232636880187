// A flag that nothing reads is refused where it was given as a flag.
#include "trireme/cli/unread_flags.h"

#include <algorithm>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/cli/bench.h"
#include "trireme/cli/eval.h"
#include "trireme/cli/tokenize.h"
#include "trireme/cli/train.h"
#include "trireme/cli/validate.h"
#include "trireme/cli/verify.h"

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"

namespace trireme::unread_flags_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string refusal(const std::vector<std::string>& arguments, const std::vector<GivenValue>& of_file = {}) {
  Declared<TrainFlags> train("train");
  std::vector<std::string> all{"--model_name_or_path", "m", "--output_dir", "o"};
  if (std::ranges::find(arguments, "--train_file") == arguments.end())
    all.insert(all.end(), {"--train_file", "t"});
  all.insert(all.end(), arguments.begin(), arguments.end());
  train.parser.parse(all, [&] { train.parser.add_file_values(of_file, Precedence::before_counts); });
  return testing::message_of<ConfigError>([&] { refuse_unread_flags(train.parser, train.flags.options); });
}

TEST(UnreadFlags, are_refused_by_their_name_with_what_would_read_them) {
  for (const auto& [flag, value, reader, read_with] :
       std::vector<std::tuple<std::string, std::string, std::string, std::vector<std::string>>>{
           {"--initial_loss_scale", "1024", "--fp16", {"--fp16"}},
           {"--loss_scale_window", "100", "--fp16", {"--fp16"}},
           {"--lora_alpha", "32", "--lora_r", {"--lora_r", "4"}},
           {"--lora_target_modules", "all-linear", "--lora_r", {"--lora_r", "4"}},
           {"--lora_modules_to_save", "norm", "--lora_r", {"--lora_r", "4"}},
           {"--warmup_type", "log", "--warmup_steps", {"--warmup_ratio", "0.1"}},
           {"--warmup_type", "log", "--warmup_ratio", {"--context_stages", R"([{"warmup_steps": 2}])"}},
           {"--resume_with_new_data",
            "true",
            "--resume_from_checkpoint",
            {"--resume_from_checkpoint", "auto"}}}) {
    EXPECT_THAT(refusal({flag, value}), StartsWith(flag));
    EXPECT_THAT(refusal({flag, value}), HasSubstr(reader));
    std::vector<std::string> read{flag, value};
    read.insert(read.end(), read_with.begin(), read_with.end());
    EXPECT_EQ(refusal(read), "no error") << flag;
  }
  EXPECT_THAT(refusal({"--lora_r", "0", "--adapter", "a"}), StartsWith("--lora_r"));
  EXPECT_THAT(refusal({"--num_train_epochs", "2", "--context_stages", "1k:10"}),
              StartsWith("--num_train_epochs"));
  EXPECT_EQ(refusal({"--num_train_epochs", "2"}), "no error");
  EXPECT_THAT(refusal({"--warmup_type", "log", "--context_stages", "1k:10"}), StartsWith("--warmup_type"));
  EXPECT_THAT(refusal({"--save_in_background", "--save_steps", "0"}), StartsWith("--save_in_background"));
  EXPECT_EQ(refusal({"--save_in_background"}), "no error");
  EXPECT_EQ(refusal({"--save_in_background", "--save_steps", "0", "--save_minutes", "60"}), "no error");
  EXPECT_THAT(refusal({"--max_seq_length", "64", "--context_stages", "1k:10"}),
              StartsWith("--max_seq_length"));
  EXPECT_EQ(refusal({"--max_seq_length", "64", "--context_stages", R"([{"steps": 10}])"}), "no error");
}

// Transformers lets one of the two win.
TEST(UnreadFlags, are_those_that_another_flag_displaces) {
  const std::vector<std::string> ratio{"--warmup_ratio", "0.1"}, epochs{"--num_train_epochs", "2"};
  const auto with = [](std::vector<std::string> flags, const std::vector<std::string>& more) {
    flags.insert(flags.end(), more.begin(), more.end());
    return refusal(flags);
  };
  EXPECT_THAT(with(ratio, {"--warmup_steps", "5"}),
              AllOf(StartsWith("--warmup_ratio"), HasSubstr("--warmup_steps")));
  EXPECT_EQ(with(ratio, {"--warmup_steps", "0"}), "no error");
  EXPECT_THAT(with(epochs, {"--max_steps", "5"}),
              AllOf(StartsWith("--num_train_epochs"), HasSubstr("--max_steps")));
  EXPECT_EQ(with(epochs, {"--max_steps", "-1"}), "no error");
  EXPECT_EQ(refusal(ratio, {{"warmup_steps", 5, "run.yaml: warmup_steps"}}), "no error");
}

TEST(UnreadFlags, are_those_that_the_first_stage_sets) {
  const auto with_stages = [](const std::string& flag, const std::string& value, const std::string& stages) {
    return refusal({flag, value, "--context_stages", stages});
  };
  EXPECT_THAT(with_stages("--learning_rate", "1e-4", "1k:10:1e-5,2k:5"), StartsWith("--learning_rate"));
  EXPECT_EQ(with_stages("--learning_rate", "1e-4", "1k:10,2k:5:1e-5"), "no error");
  const std::string list = R"([{"max_seq_length": 64, "steps": 1, "zero": 3, "sp": 2, "train_file": "t"},
                               {"steps": 1, "recompute": "full"}])";
  EXPECT_THAT(with_stages("--zero", "1", list), AllOf(StartsWith("--zero"), HasSubstr("first stage")));
  for (const char* flag : {"--sp", "--ulysses", "--ring"})
    EXPECT_THAT(with_stages(flag, "1", list), StartsWith(flag));
  EXPECT_EQ(with_stages("--recompute", "none", list), "no error");
  EXPECT_EQ(refusal({"--context_stages", list}), "no error") << "--train_file must be given";
}

// Of a set in .bin and .idx files, train reads tokens; trireme tokenize read the text.
TEST(UnreadFlags, of_text_are_refused_where_all_data_is_tokenized) {
  const testing::TemporaryFolder folder;
  const std::string set = (folder.path() / "set").string(), text = (folder.path() / "text").string();
  for (const char* end : {".bin", ".idx"}) std::ofstream(set + end) << "x";
  for (const std::vector<std::string>& flag :
       std::vector<std::vector<std::string>>{{"--text_field", "body"},
                                             {"--on_bad_record", "skip"},
                                             {"--append_eos", "true"},
                                             {"--no_append_eos"}}) {
    const auto with = [&](const std::string& train, const std::string& eval) {
      std::vector<std::string> arguments{"--train_file", train};
      arguments.insert(arguments.end(), flag.begin(), flag.end());
      if (!eval.empty()) arguments.insert(arguments.end(), {"--eval_file", eval});
      return refusal(arguments);
    };
    EXPECT_THAT(with(set, ""), AllOf(StartsWith(flag.front()), HasSubstr("trireme tokenize")));
    EXPECT_THAT(with(set, set), StartsWith(flag.front()));
    EXPECT_EQ(with(set, text), "no error");
    EXPECT_EQ(with(text, set), "no error");
    EXPECT_EQ(with(text, ""), "no error");
    std::vector<std::string> staged{"--train_file", set, "--context_stages",
                                    cat(R"([{"steps": 1}, {"steps": 1, "train_file": ")", text, "\"}]")};
    staged.insert(staged.end(), flag.begin(), flag.end());
    EXPECT_EQ(refusal(staged), "no error") << "a later stage reads text";
  }
}

TEST(UnreadFlags, of_lines_are_refused_where_a_file_is_one_document) {
  const testing::TemporaryFolder folder;
  const std::string text = (folder.path() / "a.txt").string(), lines = (folder.path() / "a.jsonl").string();
  for (const std::string& file : {text, lines}) std::ofstream(file) << "x";
  for (const auto& [flag, value] : {std::pair("--text_field", "body"), {"--on_bad_record", "skip"}}) {
    EXPECT_THAT(refusal({"--train_file", text, flag, value}), AllOf(StartsWith(flag), HasSubstr(".jsonl")));
    EXPECT_EQ(refusal({"--train_file", lines, flag, value}), "no error");
    EXPECT_EQ(refusal({"--train_file", text, "--eval_file", lines, flag, value}), "no error");
    EXPECT_EQ(refusal({"--train_file", folder.path().string(), flag, value}), "no error");
  }
  EXPECT_EQ(refusal({"--train_file", text, "--no_append_eos"}), "no error");
}

// Each is refused before the command looks for its files.
TEST(UnreadFlags, of_other_commands_are_refused_too) {
  using Words = std::vector<std::string>;
  const testing::TemporaryFolder folder;
  const std::string text = (folder.path() / "a.txt").string();
  std::ofstream(text) << "x";
  const Words checked{"--model_name_or_path", "m", "--train_file", "t", "--output_dir", "o"};
  const std::vector<std::tuple<int (*)(const Words&), Words, Words>> cases{
      {run_validate, checked, {"--skip_one_rank", "--tolerance", "1e-3"}},
      {run_validate, checked, {"--initial_loss_scale", "8"}},
      {run_eval, {"loss", "--model_name_or_path", "m", "--eval_file", "t"}, {"--recompute", "full"}},
      {run_eval, {"answers", "--model_name_or_path", "m", "--eval_file", "t"}, {"--recompute", "full"}},
      {run_eval, {"needles", "--model_name_or_path", "m", "--haystack", "t"}, {"--keep_fraction", "0.5"}},
      {run_eval, {"loss", "--model_name_or_path", "m", "--eval_file", text}, {"--text_field", "body"}},
      {run_verify,
       {"--model", "m", "--reference", "r"},
       {"--ranks_as_threads", "2", "--ddp_backend", "gloo"}},
      {run_bench,
       {"step", "--model", "m", "--seq", "64"},
       {"--simulate_ranks", "2", "--ddp_backend", "gloo"}},
      {run_tokenize, {"--tokenizer", "t", "--input", text, "--output", "o"}, {"--field", "body"}}};
  for (const auto& [run, given, unread] : cases) {
    Words words = given;
    words.insert(words.end(), unread.begin(), unread.end());
    EXPECT_THAT(testing::message_of<ConfigError>([&, run = run] { run(words); }),
                StartsWith(unread.at(unread.size() - 2) + " means nothing"));
  }
}

TEST(UnreadFlags, are_no_matter_where_a_file_gives_them) {
  EXPECT_EQ(refusal({"--bf16"}, {{"initial_loss_scale", 1024, "config.json: initial_loss_scale"},
                                 {"warmup_type", "log", "ds.json: scheduler.params.warmup_type"}}),
            "no error");
}

}  // namespace
}  // namespace trireme::unread_flags_test
