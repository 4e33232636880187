// Lists as text, and text as lists and numbers.
#include <cstdint>
#include <span>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/joined.h"
#include "trireme/base/parse_whole.h"
#include "trireme/base/split.h"

#include "tests/support/error_message.h"

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Joined, has_a_separator_between_elements_alone) {
  const std::vector<int> numbers{1, 2, 3};
  EXPECT_EQ(joined(numbers), "1, 2, 3");
  EXPECT_EQ(joined(std::span(numbers).first(1), " or "), "1");
  EXPECT_EQ(joined(std::vector<int>{}), "");
  EXPECT_EQ(joined(numbers, "", [](int number) { return 10 * number; }), "102030");
}

TEST(Split, keeps_empty_words) {
  EXPECT_THAT(split("a:b", ':'), ElementsAre("a", "b"));
  EXPECT_THAT(split(",a,,", ','), ElementsAre("", "a", "", ""));
  EXPECT_THAT(split("", ','), ElementsAre(""));
}

TEST(Split, at_commas_of_a_flag_refuses_empty_words) {
  EXPECT_THAT(split_at_commas("a,b", "--lengths"), ElementsAre("a", "b"));
  for (const char* wrong : {"", ",a", "a,", "a,,b"})
    EXPECT_THAT(testing::message_of<ConfigError>([&] { split_at_commas(wrong, "--lengths"); }),
                AllOf(HasSubstr(cat("--lengths is '", wrong, "'")), HasSubstr("is empty")));
}

TEST(ParseWhole, takes_a_text_that_is_a_number_and_nothing_else) {
  EXPECT_EQ(parse_whole<int>("-12"), -12);
  EXPECT_EQ(parse_whole<uint64_t>("ffffffffffffffff", 16), ~uint64_t{0});
  for (const char* wrong : {"", " 1", "1 ", "+1", "1k", "2147483648", "0x1"})
    EXPECT_EQ(parse_whole<int>(wrong), std::nullopt) << wrong;
}

}  // namespace
}  // namespace trireme
