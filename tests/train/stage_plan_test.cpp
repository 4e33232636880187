// The list form of --context_stages: what each stage comes to, without a run.
#include "trireme/train/stage_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/engine/check_options.h"
#include "trireme/train/check_options.h"

#include "tests/support/error_message.h"

namespace trireme::stage_plan_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TrainOptions options_of(const std::string& stages) {
  TrainOptions options;
  options.context_stages = stages;
  options.learning_rate = 4e-4;
  options.per_device_train_batch_size = 1;
  return options;
}

StagePlan plan_of(const std::string& stages, int ranks = 4, int64_t heads = 8) {
  return make_stage_plan(options_of(stages), {ranks, ranks, heads}, 1);
}

std::string refusal(const std::string& stages, int ranks = 4) {
  return testing::message_of<ConfigError>([&] { plan_of(stages, ranks); });
}

TEST(StagePlan, a_list_without_overlays_is_what_the_short_form_is) {
  const StagePlan list = plan_of(R"([{"max_seq_length": "1k", "steps": 60},
                                     {"max_seq_length": 4096, "steps": "20", "learning_rate": "1e-5"},
                                     {"max_seq_length": "16k", "steps": 8}])");
  const StagePlan text = plan_of("1k:60,4k:20:1e-5,16k:8");
  ASSERT_EQ(list.count(), 3);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(list.stages[i].sequence_tokens, text.stages[i].sequence_tokens);
    EXPECT_EQ(list.stages[i].first_step, text.stages[i].first_step);
    EXPECT_EQ(list.stages[i].steps, text.stages[i].steps);
    EXPECT_EQ(list.stages[i].schedule.peak_learning_rate, text.stages[i].schedule.peak_learning_rate);
    EXPECT_EQ(list.options[i].learning_rate, text.options[i].learning_rate);  // what --continue_run takes
    EXPECT_EQ(list.options[i].engine.planned_batch.tokens, 16384);  // one engine, made for the longest
    EXPECT_EQ(text.options[i].engine.planned_batch.tokens, 16384);
  }
  EXPECT_EQ(list.engine_changes(0, 2), "");
}

TEST(StagePlan, a_share_of_warmup_is_of_its_own_stage) {
  const StagePlan plan = plan_of(R"([{"max_seq_length": 16, "steps": 200, "warmup_steps": 100},
                                     {"steps": 50, "warmup_ratio": 0.1}, {"steps": 20}])");
  EXPECT_EQ(plan.stages[0].schedule.warmup_steps, 100);
  EXPECT_EQ(plan.stages[1].schedule.warmup_steps, 5);
  EXPECT_EQ(plan.stages[2].schedule.warmup_steps, 2);
}

TEST(StagePlan, tells_the_stage_of_the_longest_sample_and_that_of_the_fullest_micro_batch) {
  const StagePlan plan = plan_of(R"([{"max_seq_length": "8k", "steps": 1, "per_device_train_batch_size": 8},
                                     {"max_seq_length": "32k", "steps": 1, "per_device_train_batch_size": 1},
                                     {"steps": 1}])");
  EXPECT_EQ(plan.longest_stage(), 1);
  EXPECT_EQ(plan.fullest_stage(), 0);
}

TEST(StagePlan, another_schedule_begins_without_what_it_does_not_read) {
  const StagePlan plan = plan_of(R"([
    {"max_seq_length": "1k", "steps": 10, "warmup_ratio": 0.5, "lr_scheduler_type": "cosine_with_min_lr",
     "lr_scheduler_kwargs": {"min_lr_rate": 0.1}},
    {"steps": 10, "lr_scheduler_type": "cosine_with_min_lr"},
    {"steps": 10, "lr_scheduler_type": "cosine"},
    {"steps": 10, "lr_scheduler_type": "constant"}])");
  for (const TrainOptions& options : plan.options) check_options(options);
  EXPECT_EQ(plan.options[1].lr_scheduler_kwargs, R"({"min_lr_rate":0.1})");
  EXPECT_EQ(plan.options[2].lr_scheduler_kwargs, "");
  EXPECT_EQ(plan.options[2].warmup_ratio, 0.5);
  EXPECT_EQ(plan.options[3].warmup_ratio, 0.5);
}

TEST(StagePlan, what_a_stage_leaves_out_is_as_in_the_one_before) {
  const StagePlan plan = plan_of(R"([
    {"max_seq_length": "1k", "steps": 10, "warmup_ratio": 0.5},
    {"max_seq_length": "4k", "steps": 10, "rope_scaling": {"rope_type": "yarn", "factor": 4}, "sp": 4,
     "zero": 3, "offload_optimizer": "cpu", "recompute": "full", "lr_scheduler_type": "cosine"},
    {"steps": 4, "train_file": "code"}])");
  EXPECT_EQ(plan.engine_changes(1, 2), "");
  EXPECT_EQ(plan.engine_changes(0, 1), R"(offload_optimizer "none" -> "cpu", recompute "auto" -> "full", )"
                                       R"(rope_scaling "" -> yarn:4, ulysses 1 -> 4, zero 0 -> 3)");
  EXPECT_EQ(plan.options[0].engine.planned_batch.tokens, 1024);
  const TrainOptions& last = plan.options[2];
  EXPECT_EQ(last.train_file, "code");
  EXPECT_EQ(plan.options[1].train_file, "");
  EXPECT_EQ(last.engine.ulysses, 4);
  EXPECT_EQ(last.engine.zero, ZeroStage::parameters);
  EXPECT_EQ(last.engine.rope.longest_tokens, 4096);
  EXPECT_EQ(plan.stages[2].sequence_tokens, 4096);
  EXPECT_EQ(plan.stages[2].schedule.kind, ScheduleKind::cosine);
  EXPECT_EQ(plan.stages[2].schedule.warmup_steps, 2);
  EXPECT_DOUBLE_EQ(plan.stages[2].schedule.peak_learning_rate, 1e-4);
}

TEST(StagePlan, tokens_become_steps_by_the_samples_of_the_stage) {
  const StagePlan plan = plan_of(R"([
    {"max_seq_length": 1000, "tokens": 8001, "gradient_accumulation_steps": 2},
    {"max_seq_length": 1000, "tokens": 8000, "ulysses": 2}])");
  EXPECT_EQ(plan.stages[0].steps, 2);  // 4 ranks x 2 samples, and one token more
  EXPECT_EQ(plan.stages[1].steps, 2);  // 2 groups of ranks x 2 samples
}

TEST(StagePlan, keeps_the_global_batch_where_it_is_asked_to) {
  const char* const stages = R"([{"max_seq_length": 64, "steps": 2},
                                 {"max_seq_length": 64, "steps": 2, "sp": 4},
                                 {"steps": 2, "gradient_accumulation_steps": 1}])";
  TrainOptions options = options_of(stages);
  options.gradient_accumulation_steps = 2;
  const auto accumulation = [&](size_t stage) {
    return make_stage_plan(options, {4, 4, 8}, 1).options[stage].gradient_accumulation_steps;
  };
  EXPECT_EQ(accumulation(1), 2);
  options.keep_global_batch = true;
  EXPECT_EQ(accumulation(0), 2);
  EXPECT_EQ(accumulation(1), 8);
  EXPECT_EQ(accumulation(2), 1);
}

TEST(StagePlan, a_folder_and_a_budget_are_for_the_stages_that_use_them) {
  TrainOptions options = options_of(R"([{"max_seq_length": 64, "steps": 2, "recompute": "full"},
                                        {"steps": 2, "offload_optimizer": "disk", "recompute": "auto"},
                                        {"steps": 2, "offload_optimizer": "none"}])");
  options.engine.offload.folder = "/fast";
  options.engine.offload.limit_bytes = 100;
  options.engine.memory_budget_bytes = 1000;
  const auto plan = [&] { return make_stage_plan(options, {1, 1, 8}, 1); };
  for (const TrainOptions& of_stage : plan().options) EXPECT_NO_THROW(check_engine_options(of_stage.engine));
  EXPECT_EQ(plan().options[1].engine.offload.folder, "/fast");
  EXPECT_EQ(plan().options[1].engine.offload.limit_bytes, 100);
  EXPECT_EQ(plan().options[1].engine.memory_budget_bytes, 1000);
  EXPECT_EQ(plan().options[2].engine.memory_budget_bytes, 1000);
  options.context_stages = "64:2,128:2";  // no stage uses the folder
  EXPECT_THAT(testing::message_of<ConfigError>([&] { check_engine_options(plan().options[0].engine); }),
              HasSubstr("--offload_dir"));
}

TEST(StagePlan, takes_the_same_samples_of_a_step_on_other_ranks_by_more_micro_batches_in_every_stage) {
  TrainOptions options = options_of(R"([{"max_seq_length": 64, "steps": 2},
                                        {"steps": 2, "gradient_accumulation_steps": "3"}, {"steps": 2}])");
  options.gradient_accumulation_steps = 2;
  scale_accumulation(options, 4, 1);
  const StagePlan plan = make_stage_plan(options, {1, 1, 8}, 1);
  EXPECT_EQ(plan.options[0].gradient_accumulation_steps, 8);
  EXPECT_EQ(plan.options[1].gradient_accumulation_steps, 12);
  EXPECT_EQ(plan.options[2].gradient_accumulation_steps, 12);
  scale_accumulation(options, 1, 2);
  EXPECT_EQ(make_stage_plan(options, {2, 2, 8}, 1).options[1].gradient_accumulation_steps, 6);
  EXPECT_THAT(testing::message_of<ConfigError>([&] { scale_accumulation(options, 1, 4); }),
              AllOf(HasSubstr("stage 2"), HasSubstr("6 x 1 / 4"), HasSubstr("multiple of 4")));
  options.context_stages = R"([{"max_seq_length": 64, "steps": 2, "gradient_accumulation_steps": 4}])";
  options.gradient_accumulation_steps = 1;  // no stage takes it
  scale_accumulation(options, 1, 2);
  EXPECT_EQ(make_stage_plan(options, {1, 1, 8}, 1).options[0].gradient_accumulation_steps, 2);
  options.context_stages = "64:2,128:2";
  options.gradient_accumulation_steps = 4;
  scale_accumulation(options, 1, 4);
  EXPECT_EQ(options.gradient_accumulation_steps, 1);
}

TEST(StagePlan, stages_that_are_done_keep_their_micro_batches_unless_tokens_count_their_steps) {
  const std::string next = R"({"sp": 2, "tokens": "48k"}, {"steps": 3}])";
  TrainOptions options = options_of(R"([{"max_seq_length": 64, "steps": 6}, )" + next);
  options.gradient_accumulation_steps = 1;
  options.keep_global_batch = true;
  const auto accumulation = [&](size_t stage) {
    return make_stage_plan(options, {4, 4, 8}, 1).options[stage].gradient_accumulation_steps;
  };
  ASSERT_EQ(accumulation(1), 2);
  scale_accumulation(options, 1, 2, /*done=*/1);
  for (size_t stage = 0; stage < 3; ++stage) EXPECT_EQ(accumulation(stage), 1);
  options.context_stages = R"([{"max_seq_length": 64, "tokens": "6k"}, )" + next;
  EXPECT_THAT(testing::message_of<ConfigError>([&] { scale_accumulation(options, 1, 2, /*done=*/1); }),
              HasSubstr("stage 1: gradient_accumulation_steps 1: to keep the samples"));
}

TEST(StagePlan, a_mistyped_choice_suggests_the_nearest) {
  EXPECT_EQ(
      refusal(R"([{"max_seq_length": 64, "steps": 2, "offload_params": "dsik"}])"),
      "--context_stages, stage 1: offload_params is 'dsik'; expected one of none|cpu|disk; did you mean "
      "'disk'?");
}

TEST(StagePlan, what_is_wrong_names_the_stage_and_the_key) {
  const std::string first = R"([{"max_seq_length": 64, "steps": 2}, )";
  EXPECT_THAT(refusal(first + R"({"steps": 2, "lenght": 3}])"),
              AllOf(HasSubstr("stage 2"), HasSubstr("lenght")));
  EXPECT_THAT(
      refusal(first + R"({"steps": 2, "optim": "sgd"}])"),
      HasSubstr("'optim' is nothing that a stage sets; expected one of steps, tokens, sp, train_file, "));
  EXPECT_THAT(
      refusal(first + R"({"stepz": 2}])"),
      HasSubstr("'stepz' is nothing that a stage sets; did you mean 'steps'? Expected one of steps, "));
  EXPECT_THAT(refusal(first + R"({"steps": 2, "zero": 4}])"), HasSubstr("--zero is 4"));
  EXPECT_THAT(refusal(first + R"({"steps": 2, "offload_params": "moon"}])"),
              HasSubstr("offload_params is 'moon'; expected one of none|cpu|disk"));
  EXPECT_THAT(refusal(first + R"({"steps": 0}])"), HasSubstr("steps is 0"));
  EXPECT_THAT(refusal(first + R"({"steps": 2.5}])"), HasSubstr("steps: '2.5' is not a whole number"));
  EXPECT_THAT(refusal(first + R"({"steps": 2, "tokens": 5}])"), HasSubstr("one of steps and tokens"));
  EXPECT_THAT(refusal(first + R"({"max_seq_length": 64}])"), HasSubstr("one of steps and tokens"));
  EXPECT_THAT(refusal(first + R"({"steps": 2, "sp": 3}])"),
              HasSubstr("sp is 3, which does not divide the number of ranks, 4"));
  EXPECT_THAT(refusal(first + R"({"steps": 2, "sp": 2, "ring": 2}])"), HasSubstr("product"));
  EXPECT_THAT(refusal(first + R"({"steps": 2, "warmup_steps": 2}])"), HasSubstr("warm-up of 2"));
  EXPECT_THAT(refusal(first + "7]"), HasSubstr("expected an object"));
  EXPECT_THAT(refusal("[]"), HasSubstr("empty list"));
  EXPECT_THAT(refusal("[{]"), HasSubstr("--context_stages"));
}

}  // namespace
}  // namespace trireme::stage_plan_test
