// The options of a run, gone over one by one: range, config.json, and no other option's field.
#include "trireme/train/check_options.h"

#include <cmath>
#include <limits>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/engine/check_options.h"

#include "tests/support/error_message.h"
#include "tests/support/other_value.h"
#include "tests/train/tiny_run.h"

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;

class Options : public ::testing::Test {
 protected:
  Options() { list_train_options(list, options); }
  TrainOptions options;
  OptionList list;
};

TEST_F(Options, have_a_help_and_a_name_each) {
  std::set<std::string> names;
  for (const Option& option : list.options()) {
    EXPECT_TRUE(names.insert(option.name).second) << option.name;
    EXPECT_EQ(option.help.empty(), !option.is_flag()) << option.name;
    EXPECT_EQ(option.help.find("  "), std::string::npos) << option.name;
  }
}

TEST_F(Options, lie_inside_their_ranges_by_default_and_are_refused_outside) {
  check_options(options);
  int numbers = 0;
  for (const Option& option : list.options()) {
    const bool number = option.type == OptionType::count || option.type == OptionType::real;
    EXPECT_EQ(option.range.has_value(), number) << option.name;
    if (!number) continue;
    ++numbers;
    const Json before = option.read();
    for (const double outside : {option.range->least - 1, option.range->most * 2 + 1}) {
      if (std::abs(outside) > 9e18) continue;  // no whole number
      option.write(outside);
      EXPECT_THAT(message_of<ConfigError>([&] { check_options(options); }),
                  AllOf(HasSubstr("--" + option.name + " is "), HasSubstr("expected " + option.range->text()),
                        HasSubstr(option.help)));
    }
    options = {};
  }
  EXPECT_GT(numbers, 30);
}

TEST_F(Options, stand_in_config_json_each_under_its_name_and_change_no_other) {
  const Json before = to_json(options);
  for (const Option& option : list.options()) {
    if (!option.is_flag() || option.name == "dropout") continue;  // of dropout one value is built
    SCOPED_TRACE(option.name);
    const Json value = testing::other_value(option);
    option.write(value);
    const Json after = to_json(options);
    EXPECT_EQ(after.size(), before.size());
    int changed = 0;
    for (const auto& [name, now] : after.items()) changed += now != before.at(name) ? 1 : 0;
    EXPECT_EQ(changed, 1);
    if (option.in_config) {
      EXPECT_EQ(after.at(option.name), value);
    }
    options = {};
  }
}

TEST_F(Options, that_are_texts_or_paths_are_refused_where_they_are_not_utf_8) {
  int texts = 0;
  for (const Option& option : list.options()) {
    if (!option.is_flag() || (option.type != OptionType::text && option.type != OptionType::path)) continue;
    ++texts;
    option.write("/\xc3\xa4\n/caf\xe9/b");
    EXPECT_THAT(message_of<ConfigError>([&] { check_options(options); }),
                AllOf(HasSubstr("--" + option.name + " has the byte \\xe9 behind '/\xc3\xa4\\x0a/caf'"),
                      HasSubstr("expected UTF-8")));
    options = {};
  }
  EXPECT_GT(texts, 10);
  options.output_dir = "/\xc3\xa4";
  check_options(options);
}

// The fields that runs of before have kept, and that a later version reads.
TEST_F(Options, of_a_run_have_the_names_and_types_that_they_had) {
  const std::string kept =
      "adam_beta1:0.9 adam_beta2:0.999 adam_epsilon:1e-08 adapter:\"\" append_eos:true attention:\"auto\" "
      "bf16:false checkpoint_every:0 context_stages:\"\" continue_run:\"\" device:\"cpu\" dropout:null "
      "eval_file:\"\" eval_steps:0 fp16:false gradient_accumulation_steps:1 head_chunks:1 "
      "host_memory_limit:0 initial_loss_scale:65536.0 keep_fraction:1.0 keep_global_batch:false "
      "keep_mlp_fraction:0.0 keep_qkv_fraction:0.0 learning_rate:5e-05 logging_dir:\"\" logging_steps:500 "
      "logits_tile_tokens:0 long_documents:\"cut\" lora_alpha:32.0 lora_modules_to_save:\"\" lora_r:0 "
      "lora_target_modules:\"all-linear\" loss_scale_window:2000 lr_scheduler_kwargs:\"\" "
      "lr_scheduler_type:\"linear\" mask_token_id:null max_eval_samples:0 max_grad_norm:1.0 "
      "max_seq_length:1024 max_steps:-1 memory_budget:0 memory_report:false metric_for_best_model:\"none\" "
      "mlm_probability:null model_name_or_path:\"\" num_train_epochs:3.0 offload_activations:\"none\" "
      "offload_dir:\"\" offload_limit:0 offload_optimizer:\"none\" offload_params:\"none\" "
      "on_bad_record:\"stop\" on_nonfinite:\"stop\" on_spike:\"off\" optim:\"adamw_torch\" "
      "optim_state_dtype:\"fp32\" output_dir:\"trainer_output\" overwrite_output_dir:false "
      "packing:\"documents\" peak_tflops:0.0 per_device_train_batch_size:8 recompute:\"auto\" "
      "reduce_dtype:\"fp32\" report_to:\"tensorboard\" resume_from_checkpoint:\"\" "
      "resume_with_new_data:false ring:1 ring_method:\"ring\" rope_scaling:\"\" rope_theta:null "
      "save_in_background:false save_minutes:0.0 save_steps:500 save_total_limit:0 seed:42 "
      "sparse_block_tokens:0 sparse_global_blocks:0 sparse_local_blocks:1 sparse_stride_blocks:0 "
      "spike_factor:1.5 spike_steps:3 spike_window:50 strict_divisible:false text_field:\"text\" "
      "tile_tokens:0 train_file:\"\" ulysses:1 update_in_backward:false use_rslora:false "
      "validation_split_percentage:0.0 warmup_ratio:0.0 warmup_steps:0.0 warmup_type:\"linear\" "
      "weight_decay:0.0 zero:0 ";
  std::string fields;
  const Json config = to_json(options);
  for (const auto& [name, value] : config.items()) fields += cat(name, ":", value.dump(), " ");
  EXPECT_EQ(fields, kept);
}

TEST(CheckOptions, what_lies_outside_is_refused_with_flag_value_and_range) {
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
  EXPECT_THAT(refused([](TrainOptions& o) { o.warmup_steps = 1.7; }), HasSubstr("--warmup_steps is 1.7"));
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

TEST(CheckOptions, stages_whose_steps_overflow_are_refused) {
  EXPECT_THAT(message_of<ConfigError>([] { parse_context_stages("1k:9223372036854775807,2k:5", {}); }),
              HasSubstr("'1k:9223372036854775807'"));
  EXPECT_THAT(message_of<ConfigError>([] { parse_context_stages("1k:1000000000000,2k:5", {}); }),
              HasSubstr("'2k:5'"));
}

TEST(CheckOptions, a_warm_up_that_does_not_end_within_the_run_is_told) {
  StageDefaults defaults;
  defaults.warmup_steps = 11;
  EXPECT_THAT(warmup_warning(single_stage(16, 10, defaults)),
              AllOf(HasSubstr("warm-up of 11 steps"), HasSubstr("within the run's 10")));
  defaults.warmup_steps = 10;
  EXPECT_EQ(warmup_warning(single_stage(16, 10, defaults)), "");
}

TEST(CheckOptions, what_nothing_would_read_is_refused) {
  const auto refused = [](const auto& change) {
    TrainOptions options;
    change(options);
    return message_of<ConfigError>([&] { check_options(options); });
  };
  EXPECT_THAT(refused([](TrainOptions& o) {
                o.lr_scheduler_type = ScheduleKind::constant;
                o.warmup_ratio = 0.03;
              }),
              AllOf(HasSubstr("--warmup_ratio means nothing"), HasSubstr("constant_with_warmup")));
  EXPECT_THAT(refused([](TrainOptions& o) {
                o.lr_scheduler_type = ScheduleKind::constant;
                o.warmup_steps = 100;
              }),
              HasSubstr("--warmup_steps means nothing"));
  EXPECT_THAT(refused([](TrainOptions& o) { o.guards.spike_window = 9; }), HasSubstr("--spike_window"));
  EXPECT_THAT(refused([](TrainOptions& o) { o.guards.spike_steps = 9; }), HasSubstr("--spike_steps"));
  EXPECT_THAT(refused([](TrainOptions& o) { o.eval_steps = 10; }),
              AllOf(HasSubstr("--eval_steps"), HasSubstr("--eval_file")));
  EXPECT_THAT(refused([](TrainOptions& o) { o.max_eval_samples = 10; }), HasSubstr("--max_eval_samples"));
  EXPECT_THAT(refused([](TrainOptions& o) { o.guards.spike_factor = 2; }),
              AllOf(HasSubstr("--spike_factor"), HasSubstr("--on_spike warn")));
}

TEST(CheckOptions, what_is_of_adamw_is_refused_for_another_optimizer) {
  EngineOptions options;
  options.optimizer.kind = &find_optimizer("sgd");
  EXPECT_NO_THROW(check_engine_options(options));
  for (double OptimizerOptions::*of_adamw :
       {&OptimizerOptions::beta1, &OptimizerOptions::beta2, &OptimizerOptions::epsilon}) {
    EngineOptions given = options;
    given.optimizer.*of_adamw = 0.5;
    EXPECT_THAT(message_of<ConfigError>([&] { check_engine_options(given); }),
                AllOf(HasSubstr("AdamW's"), HasSubstr("sgd")));
  }
}

TrainOptions of_one_stage(const testing::TinyRun& run) {
  TrainOptions options = run.options("run");
  options.context_stages.clear();
  options.samples.max_seq_length = 16;
  options.max_steps = 2;
  return options;
}

TEST(TrainedOptions, of_a_warm_up_that_does_not_end_within_the_run_are_told) {
  const testing::TinyRun run;
  TrainOptions options = of_one_stage(run);
  options.warmup_steps = 11;
  EXPECT_THAT(testing::train_on_ranks(1, options).output, HasSubstr("warning: the warm-up of 11 steps"));
}

TEST(TrainedOptions, of_a_step_that_no_memory_holds_are_refused) {
  const testing::TinyRun run;
  TrainOptions options = of_one_stage(run);
  options.samples.packing.kind = Packing::none;
  options.samples.max_seq_length = int64_t{1} << 30;
  options.per_device_train_batch_size = kMostBatches;
  EXPECT_THAT(testing::problem_of(options),
              AllOf(HasSubstr("one step of a rank has"), HasSubstr("1,073,741,824 tokens")));
}

}  // namespace
}  // namespace trireme
