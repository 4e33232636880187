#include "trireme/train/context_stages.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/model/rope_override.h"

#include "tests/support/error_message.h"

namespace trireme {
namespace {

using ::testing::HasSubstr;

StageDefaults defaults() {
  StageDefaults all;
  all.learning_rate = 4e-4;
  all.warmup_ratio = 0.1;
  return all;
}

std::string refusal(const std::string& text, const StageDefaults& with = defaults()) {
  return testing::message_of<ConfigError>([&] { parse_context_stages(text, with); });
}

TEST(ContextStages, follow_each_other_and_halve_the_peak_at_each_step_up) {
  const auto stages = parse_context_stages("1k:60,4k:20,16k:8", defaults());
  ASSERT_EQ(stages.size(), 3U);
  EXPECT_EQ(stages[0].sequence_tokens, 1024);
  EXPECT_EQ(stages[2].sequence_tokens, 16384);
  EXPECT_EQ(stages[1].first_step, 60);
  EXPECT_EQ(stages[2].end_step(), 88);
  EXPECT_DOUBLE_EQ(stages[0].schedule.peak_learning_rate, 4e-4);
  EXPECT_DOUBLE_EQ(stages[1].schedule.peak_learning_rate, 2e-4);
  EXPECT_DOUBLE_EQ(stages[2].schedule.peak_learning_rate, 1e-4);
}

TEST(ContextStages, each_has_its_own_warm_up_and_schedule) {
  const auto stages = parse_context_stages("64:60,128:20", defaults());
  EXPECT_EQ(stages[0].schedule.warmup_steps, 6);
  EXPECT_EQ(stages[1].schedule.warmup_steps, 2);
  EXPECT_DOUBLE_EQ(stages[1].schedule.learning_rate(0), 0);
  EXPECT_DOUBLE_EQ(stages[1].schedule.learning_rate(2), 2e-4);
}

// DeepSpeed's WarmupLR: min + (max - min) log(step + 1) / log(steps), here from 0.
TEST(ContextStages, warm_up_as_the_run_says) {
  StageDefaults logarithmic = defaults();
  logarithmic.warmup_steps = 10;
  logarithmic.warmup_type = WarmupType::log;
  const auto stages = parse_context_stages("64:60", logarithmic);
  EXPECT_NEAR(stages[0].schedule.learning_rate(4), 4e-4 * std::log(5) / std::log(10), 1e-12);
}

TEST(ContextStages, a_peak_of_its_own_is_the_base_of_the_next) {
  const auto stages = parse_context_stages("64:10,128:10:1e-5,256:10", defaults());
  EXPECT_DOUBLE_EQ(stages[1].schedule.peak_learning_rate, 1e-5);
  EXPECT_DOUBLE_EQ(stages[2].schedule.peak_learning_rate, 5e-6);
}

TEST(ContextStages, steps_belong_to_the_stage_that_holds_them) {
  const auto stages = parse_context_stages("64:3,128:2", defaults());
  EXPECT_EQ(stage_of_step(stages, 0), 0);
  EXPECT_EQ(stage_of_step(stages, 2), 0);
  EXPECT_EQ(stage_of_step(stages, 3), 1);
  EXPECT_EQ(stage_of_step(stages, 5), 1);
}

TEST(ContextStages, a_part_that_is_wrong_is_quoted) {
  EXPECT_THAT(refusal("1k"), HasSubstr("'1k'"));
  EXPECT_THAT(refusal("1k:60,4q:20"), HasSubstr("4q"));
  EXPECT_THAT(refusal("1k:60,"), HasSubstr("'1k:60,': entry 2 of 2 is empty"));
  EXPECT_THAT(refusal("1k:0"), HasSubstr("1k:0"));
  EXPECT_THAT(refusal("1k:5:fast"), HasSubstr("fast"));
  EXPECT_THAT(refusal("1k:5:-1"), HasSubstr("-1"));
  EXPECT_THAT(refusal(""), HasSubstr("empty"));
}

TEST(ContextStages, a_warm_up_that_does_not_end_within_its_stage_is_refused) {
  StageDefaults with = defaults();
  with.warmup_steps = 10;
  EXPECT_THAT(refusal("64:20,128:10", with), HasSubstr("warm-up"));
  EXPECT_EQ(refusal("64:20,128:11", with), "no error");
}

ModelConfig model(int64_t positions, const RopeConfig& rope = {}) {
  ModelConfig config;
  config.max_position_embeddings = positions;
  config.rope = rope;
  return config;
}

TEST(ContextStages, a_length_past_the_positions_of_the_model_names_the_config_key) {
  EXPECT_NO_THROW(check_positions_reach(4096, model(4096), 4096));
  EXPECT_NO_THROW(check_positions_reach(4096, model(2048), 2048)) << "of documents that are shorter";
  EXPECT_THAT(testing::message_of<ConfigError>([] { check_positions_reach(4096, model(2048), 8192); }),
              ::testing::AllOf(HasSubstr("max_position_embeddings"), HasSubstr("4,096")));
}

TEST(ContextStages, rope_scaling_stretches_the_positions) {
  RopeConfig yarn;
  yarn.kind = RopeKind::yarn;
  yarn.factor = 4;
  EXPECT_EQ(position_reach(model(2048, yarn)), 8192);
  yarn.original_max_position_embeddings = 1024;
  EXPECT_EQ(position_reach(model(2048, yarn)), 4096);
  EXPECT_EQ(position_reach(model(8192, yarn)), 8192);
}

}  // namespace
}  // namespace trireme
