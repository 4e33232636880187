#include "trireme/cli/option_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"

#include "tests/cli/stdout_of.h"
#include "tests/support/error_message.h"

namespace trireme::option_parser_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Options {
  std::string name = "a";
  std::filesystem::path folder;
  std::vector<std::filesystem::path> inputs;
  int64_t max_seq_length = 1024;
  int64_t max_steps = -1;
  double learning_rate = 5e-5;
  bool bf16 = false;
  std::string optim = "adamw_torch";
  bool ran = false;
};

Options parse(const std::vector<std::string>& words, bool needs_name = false) {
  Options o;
  OptionParser parser("train", "Trains.");
  Option& name = parser.text("name", o.name, "a name");
  if (needs_name) name.required();
  parser.path("folder", o.folder, "a folder").also_called({"directory", "dir"});
  parser.paths("input", o.inputs, "files");
  parser.count("max_seq_length", o.max_seq_length, at_least(0), "tokens");
  parser.count("max_steps", o.max_steps, at_least(-1), "steps");
  parser.real("learning_rate", o.learning_rate, from_to_below(-1, 1), "peak");
  parser.flag("bf16", o.bf16, "compute in bf16");
  parser.flag("sgd", o.optim, "sgd", "the same as --optim sgd").not_in_config();
  parser.flag("alike", o.name, "alike", "the same as --name alike").not_in_config();
  parser.choice("optim", o.optim, {"adamw_torch", "sgd"}, "optimizer");
  o.ran = parser.parse(words);
  return o;
}

std::string refusal(const std::vector<std::string>& words, bool needs_name = false) {
  return testing::message_of<ConfigError>([&] { parse(words, needs_name); });
}

TEST(OptionParser, flags_take_underscores_hyphens_and_equal_signs) {
  EXPECT_EQ(parse({"--max_seq_length", "16k"}).max_seq_length, 16384);
  EXPECT_EQ(parse({"--max-seq-length", "1m"}).max_seq_length, 1048576);
  EXPECT_EQ(parse({"--max-seq_length=512k"}).max_seq_length, 524288);
  EXPECT_EQ(parse({"--name=a=b"}).name, "a=b");
  EXPECT_EQ(parse({}).max_seq_length, 1024);
}

TEST(OptionParser, numbers_may_be_negative_where_the_flag_says_so) {
  EXPECT_EQ(parse({"--max_steps", "-1", "--learning_rate", "-3e-4"}).max_steps, -1);
  EXPECT_DOUBLE_EQ(parse({"--learning_rate", "-3e-4"}).learning_rate, -3e-4);
  EXPECT_THAT(refusal({"--max_seq_length", "-1"}), HasSubstr("--max_seq_length"));
}

TEST(OptionParser, booleans_are_taken_as_hugging_face_takes_them) {
  EXPECT_TRUE(parse({"--bf16"}).bf16);
  EXPECT_TRUE(parse({"--bf16", "True"}).bf16);
  EXPECT_FALSE(parse({"--bf16", "false"}).bf16);
  EXPECT_FALSE(parse({"--bf16=no"}).bf16);
  const Options both = parse({"--bf16", "--name", "b"});
  EXPECT_TRUE(both.bf16);
  EXPECT_EQ(both.name, "b");
  EXPECT_THAT(refusal({"--bf16=perhaps"}), AllOf(HasSubstr("perhaps"), HasSubstr("true or false")));
}

TEST(OptionParser, a_switch_is_found_among_flags_that_are_not_known) {
  const auto json = [](const std::vector<std::string>& words) { return is_switched_on("json", words); };
  EXPECT_TRUE(json({"verify", "--model", "m", "--json"}));
  EXPECT_TRUE(json({"verify", "--json", "--model", "m"}));
  EXPECT_TRUE(json({"info", "--json", "true"}));
  EXPECT_TRUE(json({"info", "--json=yes"}));
  EXPECT_FALSE(json({"info", "--json", "false"}));
  EXPECT_FALSE(json({"info", "--json=no"}));
  EXPECT_FALSE(json({"train", "--json_field", "text", "json"}));
  EXPECT_FALSE(json({}));
}

TEST(OptionParser, a_flag_of_many_takes_words_up_to_the_next_flag) {
  const Options o = parse({"--input", "a", "b", "--bf16", "--input", "c"});
  EXPECT_EQ(o.inputs, (std::vector<std::filesystem::path>{"a", "b", "c"}));
}

TEST(OptionParser, an_unknown_flag_suggests_the_nearest_and_names_the_command) {
  EXPECT_THAT(refusal({"--max_seq_lenght", "4"}),
              AllOf(HasSubstr("trireme train"), HasSubstr("--max_seq_length?")));
  EXPECT_THAT(refusal({"--learningrate", "4"}), HasSubstr("--learning_rate?"));
  EXPECT_THAT(refusal({"--bf61"}), HasSubstr("--bf16?"));
  EXPECT_THAT(refusal({"--zzzzzzzzzzz"}), HasSubstr("--help"));
}

TEST(OptionParser, a_wrong_value_is_quoted_with_what_was_expected) {
  EXPECT_THAT(refusal({"--max_seq_length", "1.5k"}), HasSubstr("1.5k"));
  EXPECT_THAT(refusal({"--learning_rate", "3e-4x"}), HasSubstr("3e-4x"));
  EXPECT_THAT(refusal({"--learning_rate", "nan"}), HasSubstr("nan"));
  EXPECT_EQ(refusal({"--learning_rate", "1"}),
            "--learning_rate is 1; expected a number from -1 to below 1 (peak)");
  EXPECT_EQ(refusal({"--max_steps", "-2"}), "--max_steps is -2; expected -1 or more (steps)");
  EXPECT_THAT(refusal({"--optim", "sdg"}),
              AllOf(HasSubstr("sdg"), HasSubstr("adamw_torch|sgd"), HasSubstr("'sgd'?")));
}

TEST(OptionParser, two_flags_of_one_option_may_agree_and_not_contradict) {
  EXPECT_EQ(parse({"--sgd"}).optim, "sgd");
  EXPECT_EQ(parse({"--sgd", "--optim", "sgd"}).optim, "sgd");
  EXPECT_EQ(parse({"--sgd", "false"}).optim, "adamw_torch");
  EXPECT_EQ(parse({"--alike", "false", "--name", "alike"}).name, "alike");
  EXPECT_EQ(refusal({"--sgd", "--optim", "adamw_torch"}),
            "--optim and --sgd contradict each other; give one of them");
}

TEST(OptionParser, an_option_of_several_names_is_given_once) {
  EXPECT_EQ(parse({"--folder", "f"}).folder, "f");
  EXPECT_EQ(parse({"--dir=f"}).folder, "f");
  EXPECT_EQ(refusal({"--dir", "f", "--folder", "f"}), "--folder is given more than once; give it once");
}

TEST(OptionParser, missing_repeated_and_stray_words_are_refused) {
  EXPECT_THAT(refusal({"--name"}), HasSubstr("--name needs a value"));
  EXPECT_THAT(refusal({"--name", "--bf16"}), HasSubstr("--name needs a value"));
  EXPECT_THAT(refusal({"--name="}), HasSubstr("--name needs a value"));
  EXPECT_THAT(refusal({"--folder"}), HasSubstr("--folder needs a value: a folder"));
  EXPECT_THAT(refusal({"--bf16="}), HasSubstr("--bf16 needs a value"));
  EXPECT_THAT(refusal({"--name", "", "--bf16"}), HasSubstr("--name needs a value"));
  EXPECT_EQ(refusal({"--name", "a", "--name", "b"}), "--name is given more than once; give it once");
  EXPECT_EQ(refusal({"--max-seq-length", "1", "--max_seq_length=2"}),
            "--max_seq_length is given more than once; give it once");
  EXPECT_EQ(refusal({"--bf16", "--bf16", "false"}), "--bf16 is given more than once; give it once");
  EXPECT_THAT(refusal({"stray"}), HasSubstr("'stray'"));
  EXPECT_THAT(refusal({}, true), HasSubstr("needs --name"));
}

TEST(OptionParser, help_lists_every_flag_with_its_default_and_stops) {
  bool ran = true;
  const std::string help = testing::stdout_of([&] {
    ran = parse({"--bf16", "--help"}, true).ran;
    return 0;
  });
  EXPECT_FALSE(ran);
  for (const char* part : {"trireme train", "--max_seq_length", "1024", "--optim", "adamw_torch|sgd",
                           "required", "a folder; also --directory, --dir"})
    EXPECT_THAT(help, HasSubstr(part));
}

}  // namespace
}  // namespace trireme::option_parser_test
