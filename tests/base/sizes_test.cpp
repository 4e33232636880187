#include "trireme/base/sizes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"

#include "tests/support/error_message.h"

namespace trireme {
namespace {

TEST(Sizes, k_m_and_g_are_powers_of_two) {
  EXPECT_EQ(parse_count("61", "x"), 61);
  EXPECT_EQ(parse_count("512k", "x"), 524288);
  EXPECT_EQ(parse_count("1M", "x"), 1048576);
  EXPECT_EQ(parse_count("3g", "x"), int64_t{3} << 30);
  EXPECT_EQ(parse_count("2t", "x"), int64_t{2} << 40);
  EXPECT_EQ(parse_count("5b", "x"), 5'000'000'000);
  EXPECT_THROW(parse_count("9999999999b", "x"), ConfigError);
}

TEST(Sizes, what_is_not_a_count_is_refused) {
  for (const char* text : {"", "k", "1.5k", "12q", "1kk", "99999999999999999999", "9999999999g"})
    EXPECT_THROW(parse_count(text, "--max_seq_length"), ConfigError) << text;
  EXPECT_THAT(testing::message_of<ConfigError>([] { parse_count("0.5", "--seed"); }),
              ::testing::StartsWith("--seed: '0.5' is not a whole number; expected one such as"));
}

TEST(Sizes, are_written_as_people_read_them) {
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(17), "17 B");
  EXPECT_EQ(format_count(1048576), "1,048,576");
  EXPECT_EQ(format_count(-100), "-100");
  EXPECT_EQ(format_fixed(3.14159, 2), "3.14");
  EXPECT_EQ(format_fixed(-2, 1), "-2.0");
  EXPECT_EQ(format_duration(3725.2), "1:02:05");
}

}  // namespace
}  // namespace trireme
