// What the operators of the Python package keep between calls.
#include "python/operators/prepared_mask.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"

#include "tests/support/error_message.h"

namespace trireme::prepared_mask_test {
namespace {

MaskArguments arguments_of(int64_t tokens) {
  return {at::kCPU,
          0,
          at::kFloat,
          {.tokens = tokens, .ulysses = 2},
          0,
          {.window = 3},
          {Documents({0, 4, tokens})}};
}

const VisibleKeys* keys_of(const MaskArguments& arguments) {
  return BorrowedMask(arguments).mask().keys.front().get();
}

// The address of keys that live is theirs alone.
TEST(PreparedMask, is_that_of_the_call_before_where_no_argument_differs) {
  const MaskArguments first = arguments_of(10);
  const VisibleKeys* const keys = keys_of(first);
  EXPECT_EQ(keys_of(arguments_of(10)), keys);
  std::vector<MaskArguments> others(8, first);
  others[0].dtype = at::kBFloat16;
  others[1].layout.ulysses = 1;
  others[2].mask.window = 4;
  others[3].mask.causality = Causality::full;
  others[4].documents = {Documents({0, 5, 10})};
  others[5].documents = {};
  others[6].stream = 1;
  others[7].scores = Scores::capped;
  for (const MaskArguments& other : others) {
    EXPECT_NE(keys_of(other), keys);
    EXPECT_EQ(keys_of(first), keys) << "used again and again, it is not the oldest";
  }
}

TEST(PreparedMask, is_of_one_thread_at_a_time) {
  const BorrowedMask mine(arguments_of(11)), another(arguments_of(11));
  EXPECT_NE(mine.mask().keys.front(), another.mask().keys.front());
  EXPECT_NE(&mine.mask(), &another.mask());
}

TEST(PreparedMask, is_forgotten_after_four_others) {
  std::weak_ptr<const VisibleKeys> keys;
  {
    const BorrowedMask borrowed(arguments_of(12));
    keys = borrowed.mask().keys.front();
  }
  for (const int64_t tokens : {20, 21, 22}) keys_of(arguments_of(tokens));
  EXPECT_FALSE(keys.expired());
  keys_of(arguments_of(23));
  EXPECT_TRUE(keys.expired());
}

TEST(PreparedMask, of_documents_that_end_elsewhere_is_refused) {
  MaskArguments wrong = arguments_of(10);
  wrong.layout.tokens = 12;
  EXPECT_THAT(testing::message_of<ConfigError>([&] { BorrowedMask borrowed(wrong); }),
              ::testing::HasSubstr("documents of 10 tokens in a sample of 12"));
}

}  // namespace
}  // namespace trireme::prepared_mask_test
