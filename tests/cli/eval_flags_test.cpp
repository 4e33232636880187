// What `eval answers` and `eval needles` make of their flags.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/cli/eval.h"

#include "tests/support/error_message.h"

namespace trireme {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;

std::vector<int64_t> lengths_of(const std::string& text) {
  Declared<NeedlesFlags> needles("eval needles");
  needles.parser.parse({"--model_name_or_path", "m", "--haystack", "h", "--lengths", text});
  return needles.flags.lengths_in_tokens();
}

TEST(EvalFlags, of_needles_take_lengths_as_people_write_them) {
  EXPECT_THAT(lengths_of("512"), ElementsAre(512));
  EXPECT_THAT(lengths_of("4k,32k,1m"), ElementsAre(4096, 32768, 1048576));
  for (const char* wrong : {"4k,,8k", "4k,", "x", "0", "-4"})
    EXPECT_THAT(message_of<ConfigError>([&] { lengths_of(wrong); }), HasSubstr("--lengths")) << wrong;
  NeedlesFlags none;
  none.lengths = "";
  EXPECT_THAT(message_of<ConfigError>([&] { none.lengths_in_tokens(); }), HasSubstr("such as 4k,32k,128k"));
}

TEST(EvalFlags, name_the_evaluations_that_there_are) {
  EXPECT_THAT(message_of<ConfigError>([] { run_eval({"perplexity"}); }),
              HasSubstr("trireme eval perplexity: expected one of loss, answers, needles"));
  EXPECT_THAT(message_of<ConfigError>([] { run_eval({}); }),
              HasSubstr("trireme eval: expected one of loss, answers, needles; see trireme eval --help"));
}

}  // namespace
}  // namespace trireme
