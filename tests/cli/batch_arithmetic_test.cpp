// train_batch_size = micro-batch x accumulation x groups: what follows, what is refused, what is right
// instead.
#include "trireme/cli/batch_arithmetic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"

#include "tests/support/error_message.h"

namespace trireme::batch_arithmetic_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Count = std::optional<int64_t>;

BatchNumbers numbers(Count train, Count micro, Count accumulation) {
  BatchNumbers given;
  if (train) given.train = BatchNumber{*train, "train_batch_size"};
  if (micro) given.micro = BatchNumber{*micro, "train_micro_batch_size_per_gpu"};
  if (accumulation) given.accumulation = BatchNumber{*accumulation, "gradient_accumulation_steps"};
  return given;
}

std::pair<int64_t, int64_t> resolved(const BatchNumbers& given, const RunRanks& run) {
  const Batch batch = resolve_batch(given, run, "ds.json");
  return {batch.micro, batch.accumulation};
}

std::string refusal(const BatchNumbers& given, const RunRanks& run) {
  return testing::message_of<ConfigError>([&] { resolve_batch(given, run, "ds.json"); });
}

TEST(BatchArithmetic, the_third_number_follows_from_two) {
  const RunRanks run{32, 8};  // 4 groups
  EXPECT_EQ(resolved(numbers(16, 1, 4), run), std::pair(1L, 4L));
  EXPECT_EQ(resolved(numbers(16, 2, {}), run), std::pair(2L, 2L));
  EXPECT_EQ(resolved(numbers(16, {}, 2), run), std::pair(2L, 2L));
  EXPECT_EQ(resolved(numbers(16, {}, {}), run), std::pair(4L, 1L));
  EXPECT_EQ(resolved(numbers({}, 3, 5), run), std::pair(3L, 5L));
}

TEST(BatchArithmetic, a_contradiction_shows_the_numbers_of_this_run_and_the_fix) {
  EXPECT_THAT(
      refusal(numbers(1, 1, 4), {32, 8}),
      AllOf(HasSubstr("ds.json: train_batch_size 1 is not train_micro_batch_size_per_gpu 1 x "
                      "gradient_accumulation_steps 4 x 4 data-parallel groups (32 ranks / 8 that "
                      "share a sample) = 16"),
            HasSubstr("\"train_batch_size\": 16"), HasSubstr("trireme config fix ds.json --ranks 32")));
  EXPECT_THAT(refusal(numbers(1, 1, 4), {1, 1}), HasSubstr("x 1 data-parallel group (1 rank / 1"));
}

TEST(BatchArithmetic, what_does_not_divide_is_refused_with_the_nearest_that_does) {
  EXPECT_THAT(refusal(numbers(30, {}, {}), {4, 1}), HasSubstr("the nearest are 28 and 32"));
  EXPECT_THAT(refusal(numbers(30, 4, {}), {4, 1}), HasSubstr("= 16; the nearest are 16 and 32"));
  EXPECT_THAT(refusal(numbers(3, {}, 4), {4, 1}), HasSubstr("= 16; the nearest are 16;"));
}

// By trying every run: what is mended is taken, and what is taken needs no mending.
TEST(BatchArithmetic, a_mended_number_is_right_and_a_right_one_is_not_mended) {
  for (const RunRanks& run : {RunRanks{1, 1}, RunRanks{6, 2}, RunRanks{8, 8}})
    for (int64_t train = 1; train <= 40; ++train)
      for (const Count micro : {Count(), Count(1), Count(3)})
        for (const Count accumulation : {Count(), Count(1), Count(4)}) {
          const auto mended = mended_train_batch(numbers(train, micro, accumulation), run);
          const int64_t right = mended.value_or(train);
          const auto [m, a] = resolved(numbers(right, micro, accumulation), run);
          EXPECT_EQ(m * a * run.groups(), right);
          EXPECT_EQ(m, micro.value_or(m));
          EXPECT_EQ(a, accumulation.value_or(a));
          if (!mended) continue;
          EXPECT_NE(*mended, train);
          // No right number is nearer.
          for (int64_t near = train; near < train + std::abs(*mended - train); ++near)
            EXPECT_NE(mended_train_batch(numbers(near, micro, accumulation), run), std::nullopt);
        }
}

}  // namespace
}  // namespace trireme::batch_arithmetic_test
