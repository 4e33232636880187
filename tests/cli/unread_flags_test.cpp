// A flag that nothing reads is refused where it was given as a flag.
#include "trireme/cli/unread_flags.h"

#include <algorithm>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/cli/train.h"

#include "tests/support/temporary_folder.h"

namespace trireme::unread_flags_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// What the refusal says; empty: none.
std::string refusal(const std::vector<std::string>& arguments, const std::vector<GivenValue>& of_file = {}) {
  TrainFlags flags;
  OptionParser parser("train", "");
  flags.declare(parser);
  std::vector<std::string> all{"--model_name_or_path", "m", "--output_dir", "o"};
  if (std::ranges::find(arguments, "--train_file") == arguments.end())
    all.insert(all.end(), {"--train_file", "t"});
  all.insert(all.end(), arguments.begin(), arguments.end());
  parser.parse(all, [&] { parser.add_file_values(of_file, Precedence::before_counts); });
  try {
    refuse_unread_flags(parser, flags.options);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(UnreadFlags, are_refused_by_their_name_with_what_would_read_them) {
  for (const auto& [flag, value, reader, read_with] :
       std::vector<std::tuple<std::string, std::string, std::string, std::vector<std::string>>>{
           {"--initial_loss_scale", "1024", "--fp16", {"--fp16"}},
           {"--loss_scale_window", "100", "--fp16", {"--fp16"}},
           {"--warmup_type", "log", "--warmup_steps", {"--warmup_ratio", "0.1"}},
           {"--warmup_type", "log", "--warmup_ratio", {"--context_stages", "1k:10"}}}) {
    EXPECT_THAT(refusal({flag, value}), StartsWith(flag));
    EXPECT_THAT(refusal({flag, value}), HasSubstr(reader));
    std::vector<std::string> read{flag, value};
    read.insert(read.end(), read_with.begin(), read_with.end());
    EXPECT_EQ(refusal(read), "") << flag;
  }
  EXPECT_THAT(refusal({"--num_train_epochs", "2", "--context_stages", "1k:10"}),
              StartsWith("--num_train_epochs"));
  EXPECT_EQ(refusal({"--num_train_epochs", "2"}), "");
  EXPECT_THAT(refusal({"--max_seq_length", "64", "--context_stages", "1k:10"}),
              StartsWith("--max_seq_length"));
  EXPECT_EQ(refusal({"--max_seq_length", "64", "--context_stages", R"([{"steps": 10}])"}), "");
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
    EXPECT_EQ(with(set, text), "");
    EXPECT_EQ(with(text, set), "");
    EXPECT_EQ(with(text, ""), "");
  }
}

TEST(UnreadFlags, are_no_matter_where_a_file_gives_them) {
  EXPECT_EQ(refusal({"--bf16"}, {{"initial_loss_scale", 1024, "config.json: initial_loss_scale"},
                                 {"warmup_type", "log", "ds.json: scheduler.params.warmup_type"}}),
            "");
}

}  // namespace
}  // namespace trireme::unread_flags_test
