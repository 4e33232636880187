// trireme config: a file that contradicts itself is mended, with nothing else changed and nothing lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/base/json.h"
#include "trireme/cli/config.h"

#include "tests/cli/stdout_of.h"
#include "tests/support/error_message.h"
#include "tests/support/file_bytes.h"
#include "tests/support/temporary_folder.h"

namespace trireme::config_fix_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const char* const kGuide = R"({
  "train_batch_size": 1, "train_micro_batch_size_per_gpu": 1, "steps_per_print": 10,
  "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "reduce_bucket_size": 5e8},
  "sequence_parallelism": {"enabled": true, "degree": 8, "sequence_parallel_type": "ulysses"},
  "fp16": {"enabled": true}, "gradient_accumulation_steps": 4, "gradient_clipping": 1.0
})";

std::string replaced(std::string text, const std::string& old, const std::string& with) {
  return text.replace(text.find(old), old.size(), with);
}

TEST(ConfigFix, changes_the_number_that_is_wrong_and_no_other_letter) {
  const MendedText mended = mend_deepspeed_text(kGuide, "ds.json", 32);
  EXPECT_EQ(mended.text, replaced(kGuide, "\"train_batch_size\": 1", "\"train_batch_size\": 16"));
  EXPECT_THAT(
      mended.changes,
      ElementsAre(
          "train_batch_size: 1 -> 16 (train_micro_batch_size_per_gpu 1 x "
          "gradient_accumulation_steps 4 x 4 data-parallel groups (32 ranks / 8 that share a sample))"));
  EXPECT_THAT(mend_deepspeed_text(mended.text, "ds.json", 32).changes, IsEmpty());
}

TEST(ConfigFix, a_degree_that_the_ranks_cannot_have_becomes_the_most_of_it) {
  const MendedText mended = mend_deepspeed_text(kGuide, "ds.json", 6);
  EXPECT_EQ(mended.text, replaced(replaced(kGuide, "\"degree\": 8", "\"degree\": 6"),
                                  "\"train_batch_size\": 1", "\"train_batch_size\": 4"));
  EXPECT_THAT(mended.changes[0], HasSubstr("sequence_parallelism.degree: 8 -> 6"));
  EXPECT_EQ(parse_json(mend_deepspeed_text(kGuide, "ds.json", 12).text,
                       "ds.json")["sequence_parallelism"]["degree"],
            6);
}

TEST(ConfigFix, without_ranks_the_batch_is_left_to_each_run) {
  EXPECT_EQ(mend_deepspeed_text(kGuide, "ds.json", {}).text,
            replaced(kGuide, "\"train_batch_size\": 1", "\"train_batch_size\": \"auto\""));
}

TEST(ConfigFix, numbers_that_no_batch_can_have_are_refused) {
  for (const char* text : {R"({"train_batch_size": 4, "gradient_accumulation_steps": 0})",
                           R"({"train_batch_size": 4, "train_micro_batch_size_per_gpu": 1e15})",
                           R"({"train_batch_size": 4, "sequence_parallel_size": 0})"})
    EXPECT_THAT(testing::message_of<ConfigError>([&] { mend_deepspeed_text(text, "ds.json", 2); }),
                HasSubstr("expected"))
        << text;
}

TEST(ConfigFix, finds_the_value_whatever_stands_around_it) {
  const std::string odd =
      R"({"zero_optimization":{"leaf_module":{"degree":8,"classes":["degree","train_batch_size"]}},)"
      R"("sequence_parallelism":{"sequence_parallel_type":"ulysses","degree" : 8},"train_batch_size":3})";
  EXPECT_EQ(mend_deepspeed_text(odd, "ds.json", 2).text, replaced(odd, "\"degree\" : 8", "\"degree\" : 2"));
  EXPECT_EQ(mend_deepspeed_text("{\"train_batch_size\":\n 3\n}", "ds.json", 2).text,
            "{\"train_batch_size\":\n 2\n}");
  const std::string escaped =
      R"({"sequence\u005fparallelism": {"degre\u0065": 8}, "gradient_accumulation_steps": 2, )"
      R"("train\u005fbatch_size": 3})";
  EXPECT_EQ(mend_deepspeed_text(escaped, "ds.json", 2).text,
            replaced(replaced(escaped, ": 8}", ": 2}"), ": 3}", ": 2}"));
}

class ConfigCommand : public ::testing::Test {
 protected:
  static std::string run(const std::vector<std::string>& words) {
    return testing::stdout_of([&] { return run_config(words); });
  }
  testing::TemporaryFolder folder_;
};

TEST_F(ConfigCommand, fix_writes_beside_the_file_and_loses_none) {
  const std::string file = folder_.write("ds.json", kGuide).string();
  EXPECT_THAT(run({"fix", file, "--ranks", "32"}),
              AllOf(HasSubstr("ds.fixed.json"), HasSubstr("train_batch_size: 1 -> 16")));
  EXPECT_EQ(testing::bytes_of(file), kGuide);
  const auto fixed = folder_ / "ds.fixed.json";
  EXPECT_EQ(testing::bytes_of(fixed), mend_deepspeed_text(kGuide, "ds.json", 32).text);
  EXPECT_THAT(testing::message_of<ConfigError>([&] {
                run_config({"fix", file, "--ranks", "8"});
              }),
              AllOf(HasSubstr("is there already"), HasSubstr("--overwrite")));
  EXPECT_THAT(testing::message_of<ConfigError>([&] {
                run_config({"fix", file, "--ranks", "8", "--output", file});
              }),
              HasSubstr("is there already"));
  run({"fix", file, "--ranks", "8", "--output", file, "--overwrite"});
  EXPECT_EQ(testing::bytes_of(file), mend_deepspeed_text(kGuide, "ds.json", 8).text);
  EXPECT_THAT(run({"fix", file, "--ranks", "8"}), HasSubstr("do not contradict"));
}

TEST_F(ConfigCommand, show_says_what_each_key_becomes) {
  const std::string file = folder_.write("ds.json", kGuide).string();
  EXPECT_THAT(run({"show", file}), AllOf(HasSubstr("--ulysses 8"), HasSubstr("sequence_parallelism.degree"),
                                         HasSubstr("samples of a step 1"), HasSubstr("reduce_bucket_size")));
  const std::string yaml = folder_.write("run.yaml", "lr: 5\n").string();
  EXPECT_THAT(testing::message_of<ConfigError>([&] {
                run_config({"show", yaml});
              }),
              AllOf(HasSubstr("--learning_rate"), Not(HasSubstr("DeepSpeed"))));
  EXPECT_THAT(run({"show", "--help"}), AllOf(HasSubstr("config show FILE"), Not(HasSubstr("--output"))));
}

TEST_F(ConfigCommand, wrong_words_are_refused) {
  const auto refusal = [](const std::vector<std::string>& words) {
    return testing::message_of<ConfigError>([&] { run_config(words); });
  };
  EXPECT_THAT(refusal({"mend", "ds.json"}), AllOf(HasSubstr("no 'mend'"), HasSubstr("config fix FILE")));
  EXPECT_THAT(refusal({"fix", "--ranks", "2"}), HasSubstr("needs a file"));
  EXPECT_THAT(refusal({"show", "ds.json", "--ranks", "2"}), HasSubstr("--ranks"));
}

}  // namespace
}  // namespace trireme::config_fix_test
