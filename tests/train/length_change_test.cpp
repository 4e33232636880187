// What is said of a change of length, by losses written by hand.
#include "trireme/train/length_change.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"

#include "tests/support/error_message.h"

namespace trireme::length_change_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// The lines that `losses` bring.
std::vector<std::string> lines(LengthChange& change, const std::vector<double>& losses) {
  std::vector<std::string> all;
  for (const double loss : losses)
    if (const auto line = change.add(loss)) all.push_back(*line);
  return all;
}

LengthChange after(const std::vector<double>& losses) {
  LengthChange change;
  change.stage_begins(8192, 100);
  EXPECT_TRUE(lines(change, losses).empty());
  return change;
}

TEST(LengthChange, is_told_once_beside_the_mean_of_the_steps_before) {
  std::vector<double> before(30, 9.0);
  before.insert(before.end(), 20, 2.0);  // the last 20 count
  LengthChange change = after(before);
  change.stage_begins(32768, 100);
  EXPECT_THAT(
      lines(change, {2.4, 2.2, 2.2, 2.1, 2.1, 5, 5, 5, 5, 5}),
      ::testing::ElementsAre("length 8,192 -> 32,768: the loss was 2.0000 over the last 20 steps, and is "
                             "2.4000 in the first and 2.2000 over the first 5 steps (+10.0 %)"));
}

TEST(LengthChange, is_a_warning_where_the_loss_jumps) {
  LengthChange change = after({2, 2});
  change.stage_begins(32768, 2);  // a stage of two steps
  const auto told = lines(change, {2.4, 2.5});
  ASSERT_EQ(told.size(), 1U);
  EXPECT_THAT(told[0], AllOf(StartsWith("warning: length"), HasSubstr("over the first 2 steps"),
                             HasSubstr("--rope_scaling")));
}

TEST(LengthChange, says_nothing_of_a_stage_of_the_same_length) {
  LengthChange change = after({2, 2});
  change.stage_begins(8192, 100);
  EXPECT_TRUE(lines(change, {9, 9, 9, 9, 9, 9}).empty());
}

TEST(LengthChange, goes_on_from_its_state_wherever_it_was_saved) {
  const auto told = [](int64_t stop) {
    LengthChange change = after({3, 2, 1});
    change.stage_begins(16384, 100);
    std::vector<std::string> all;
    for (int64_t i = 0; i < 5; ++i) {
      if (i == stop) {
        const Json saved = change.state();
        change = LengthChange();
        change.restore(parse_json(saved.dump(), "state"), "state");
        change.stage_begins(16384, 100);
      }
      if (const auto line = change.add(1.0 + static_cast<double>(i))) all.push_back(*line);
    }
    return all;
  };
  ASSERT_EQ(told(-1).size(), 1U);
  for (const int64_t stop : {0, 2, 4}) EXPECT_EQ(told(stop), told(-1));
  LengthChange change;
  EXPECT_THAT(testing::message_of<DataError>([&] {
                change.restore({{"tokens", -1}}, "here");
              }),
              HasSubstr("here"));
  for (const Json& wrong : {Json(3), Json({1, "x"}), Json({nullptr}), Json(std::vector<double>(21, 1.0))})
    EXPECT_THAT(testing::message_of<DataError>([&] {
                  change.restore({{"tokens", 1}, {"recent", wrong}}, "here");
                }),
                HasSubstr("here: "));
}

}  // namespace
}  // namespace trireme::length_change_test
