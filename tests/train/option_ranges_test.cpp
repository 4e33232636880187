#include "trireme/train/option_ranges.h"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"

#include "tests/support/error_message.h"

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;

TEST(OptionRanges, defaults_lie_inside) {
  check_options(TrainOptions{});
}

TEST(OptionRanges, what_lies_outside_is_refused_with_flag_value_and_range) {
  const auto refused = [](const auto& change) {
    TrainOptions options;
    change(options);
    return message_of<ConfigError>([&] { check_options(options); });
  };
  EXPECT_THAT(
      refused([](TrainOptions& o) { o.gradient_accumulation_steps = 2147483648; }),
      AllOf(HasSubstr("--gradient_accumulation_steps is 2147483648"), HasSubstr("from 1 to 1048576")));
  EXPECT_THAT(refused([](TrainOptions& o) { o.per_device_train_batch_size = int64_t{1} << 40; }),
              HasSubstr("--per_device_train_batch_size"));
  EXPECT_THAT(refused([](TrainOptions& o) { o.warmup_steps = 1e20; }), HasSubstr("--warmup_steps is 1e+20"));
  EXPECT_THAT(refused([](TrainOptions& o) { o.warmup_ratio = 1.5; }), HasSubstr("--warmup_ratio"));
  EXPECT_THAT(refused([](TrainOptions& o) { o.learning_rate = std::numeric_limits<double>::infinity(); }),
              HasSubstr("--learning_rate is inf"));
  EXPECT_THAT(refused([](TrainOptions& o) { o.learning_rate = 0; }), HasSubstr("a number above 0"));
  EXPECT_THAT(refused([](TrainOptions& o) { o.engine.optimizer.weight_decay = std::nan(""); }),
              HasSubstr("--weight_decay is nan"));
  EXPECT_THAT(refused([](TrainOptions& o) { o.engine.optimizer.beta2 = 1; }), HasSubstr("to below 1"));
  EXPECT_THAT(refused([](TrainOptions& o) { o.max_steps = std::numeric_limits<int64_t>::max(); }),
              HasSubstr("--max_steps"));
  EXPECT_THAT(refused([](TrainOptions& o) { o.seed = -1; }), HasSubstr("--seed is -1"));
}

// No value of the table reaches another's flag.
TEST(OptionRanges, every_row_reads_the_option_that_it_names) {
  TrainOptions options;
  const Json before = to_json(options);
  for (const OptionRange& range : option_ranges())
    EXPECT_EQ(before.at(range.flag).get<double>(), range.value(options)) << range.flag;
}

TEST(OptionRanges, stages_whose_steps_overflow_are_refused) {
  EXPECT_THAT(message_of<ConfigError>([] { parse_context_stages("1k:9223372036854775807,2k:5", {}); }),
              HasSubstr("'1k:9223372036854775807'"));
  EXPECT_THAT(message_of<ConfigError>([] { parse_context_stages("1k:1000000000000,2k:5", {}); }),
              HasSubstr("'2k:5'"));
}

TEST(OptionRanges, a_warm_up_that_does_not_end_within_the_run_is_told) {
  StageDefaults defaults;
  defaults.warmup_steps = 11;
  EXPECT_THAT(warmup_warning(single_stage(16, 10, defaults)),
              AllOf(HasSubstr("warm-up of 11 steps"), HasSubstr("within the run's 10")));
  defaults.warmup_steps = 10;
  EXPECT_EQ(warmup_warning(single_stage(16, 10, defaults)), "");
}

TEST(OptionRanges, a_step_that_no_memory_holds_is_refused_with_its_factors) {
  TrainOptions options;
  options.per_device_train_batch_size = 1000;
  options.gradient_accumulation_steps = 1000;
  const auto stages = single_stage(1024, 10, {});
  EXPECT_THAT(message_of<ConfigError>([&] { check_step_tokens(options, stages, 1, int64_t{8} << 30); }),
              AllOf(HasSubstr("--per_device_train_batch_size"), HasSubstr("1,024"), HasSubstr("8.0 GiB")));
  check_step_tokens(options, stages, 4, int64_t{8} << 30);
}

}  // namespace
}  // namespace trireme
