#include "trireme/train/resume_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/model/computed_fields.h"
#include "trireme/train/train_options.h"

#include "tests/engine/tiny_model.h"
#include "tests/support/error_message.h"

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::message_of;
using ::testing::Not;

RunFacts facts() {
  RunFacts run;
  run.options = to_json(TrainOptions{});
  run.train_source = {{"path", "/a"}, {"digest", "1"}, {"text_field", "text"}};
  run.model = computed_fields(parse_model_config(testing::tiny_llama_config(), "config.json"));
  run.ranks = 2;
  return run;
}

TEST(ResumeRules, the_same_run_goes_on_without_a_word) {
  const ResumeDecision decision = decide_resume(facts(), facts(), false);
  EXPECT_THAT(decision.told, IsEmpty());
  EXPECT_FALSE(decision.data_anew);
}

TEST(ResumeRules, each_option_is_free_told_or_refused_as_its_rule_says) {
  TrainOptions options;
  OptionList list;
  list_train_options(list, options);
  for (const Option& option : list.options()) {
    if (!option.in_config) continue;
    RunFacts now = facts();
    Json& value = now.options[option.name];
    value = value.is_number_integer() ? Json(value.get<int64_t>() + 2)
            : value.is_number()       ? Json(value.get<double>() + 2)
                                      : Json("another");
    if (option.resume_rule == ResumeRule::same_order) {
      EXPECT_THAT(message_of<ConfigError>([&] { decide_resume(facts(), now, false); }),
                  AllOf(HasSubstr(option.name), HasSubstr("--resume_with_new_data")));
      const ResumeDecision decision = decide_resume(facts(), now, true);
      EXPECT_TRUE(decision.data_anew) << option.name;
      EXPECT_EQ(decision.told.size(), 1U) << option.name;
    } else {
      const ResumeDecision decision = decide_resume(facts(), now, false);
      const bool told = option.resume_rule == ResumeRule::told;
      EXPECT_EQ(!decision.told.empty(), told) << option.name;
      if (!decision.told.empty()) {
        EXPECT_THAT(decision.told.front(), HasSubstr(option.name));
      }
    }
  }
}

TEST(ResumeRules, other_data_is_refused_and_the_same_at_another_path_is_told) {
  RunFacts now = facts();
  now.train_source["path"] = "/b";
  EXPECT_THAT(decide_resume(facts(), now, false).told,
              ElementsAre(AllOf(HasSubstr("/b"), HasSubstr("same content"))));
  now.train_source["digest"] = "2";
  now.train_source["text_field"] = "body";
  EXPECT_THAT(message_of<ConfigError>([&] { decide_resume(facts(), now, false); }),
              AllOf(HasSubstr("/b"), HasSubstr("text_field \"text\" -> \"body\"")));
  EXPECT_TRUE(decide_resume(facts(), now, true).data_anew);
}

TEST(ResumeRules, another_number_of_the_model_is_refused_with_both_values_and_no_other) {
  Json changed = testing::tiny_llama_config();
  changed["rope_theta"] = 77777.0;
  RunFacts now = facts();
  now.model = computed_fields(parse_model_config(changed, "config.json"));
  EXPECT_THAT(message_of<ConfigError>([&] { decide_resume(facts(), now, false); }),
              AllOf(HasSubstr("rope_theta"), HasSubstr("-> 77777.0"), Not(HasSubstr("rms_norm_eps"))));
}

// Each key that decides numbers, with a value that the parser takes.
TEST(ResumeRules, another_number_of_any_family_is_refused) {
  const Json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 64}},
             llama3 = {{"rope_type", "llama3"},
                       {"factor", 4.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 64}};
  const auto llama_with = [](const Json& fields) {
    Json config = testing::tiny_llama_config();
    config.update(fields);
    return config;
  };
  const Json llama = testing::tiny_llama_config();
  struct Case {
    Json config;
    const char* path;
    Json value;
  };
  const std::vector<Case> cases{
      {llama, "/rope_theta", 77777.0},
      {llama, "/rms_norm_eps", 0.25},
      {llama, "/tie_word_embeddings", true},
      {llama, "/attention_bias", true},
      {llama, "/mlp_bias", true},
      {llama, "/vocab_size", 71},
      {llama, "/hidden_size", 64},
      {llama, "/intermediate_size", 99},
      {llama, "/num_hidden_layers", 7},
      {llama, "/num_attention_heads", 8},
      {llama, "/num_key_value_heads", 4},
      {llama, "/head_dim", 24},
      {llama, "/rope_scaling", {{"rope_type", "linear"}, {"factor", 2.0}}},
      {llama, "/pad_token_id", 3},
      {llama_with({{"model_type", "mistral"}, {"sliding_window", 5}}), "/sliding_window", 9},
      {testing::tiny_gemma3_config(), "/sliding_window", 9},
      {testing::tiny_gemma3_config(), "/query_pre_attn_scalar", 99},
      {testing::tiny_mixture_config(), "/num_experts", 6},
      {testing::tiny_mixture_config(), "/num_experts_per_tok", 3},
      {testing::tiny_mixture_config(), "/moe_intermediate_size", 32},
      {testing::tiny_mixture_config(), "/norm_topk_prob", false},
      {testing::tiny_gemma3_config(), "/rope_local_base_freq", 99.0},
      {testing::tiny_gemma2_config(), "/final_logit_softcapping", nullptr},
      {testing::tiny_gemma2_config(), "/attn_logit_softcapping", nullptr},
      {testing::tiny_qwen3_5_config(), "/partial_rotary_factor", 1.0},
      {llama_with({{"rope_scaling", yarn}}), "/rope_scaling/beta_fast", 16.0},
      {llama_with({{"rope_scaling", yarn}}), "/rope_scaling/beta_slow", 2.0},
      {llama_with({{"rope_scaling", yarn}}), "/rope_scaling/attention_factor", 1.5},
      {llama_with({{"rope_scaling", yarn}}), "/rope_scaling/factor", 8.0},
      {llama_with({{"rope_scaling", llama3}}), "/rope_scaling/low_freq_factor", 2.0},
      {llama_with({{"rope_scaling", llama3}}), "/rope_scaling/high_freq_factor", 8.0}};
  for (const Case& one : cases) {
    Json changed = one.config;
    changed[Json::json_pointer(one.path)] = one.value;
    RunFacts before = facts(), now = facts();
    before.model = computed_fields(parse_model_config(one.config, "config.json"));
    now.model = computed_fields(parse_model_config(changed, "config.json"));
    EXPECT_THAT(message_of<ConfigError>([&] { decide_resume(before, now, true); }), HasSubstr(" -> "))
        << one.path;
  }
}

TEST(ResumeRules, a_larger_bound_of_positions_is_told_where_it_changes_no_number) {
  Json config = testing::tiny_llama_config();
  config["max_position_embeddings"] = 4096;
  RunFacts now = facts();
  now.model = computed_fields(parse_model_config(config, "config.json"));
  EXPECT_THAT(decide_resume(facts(), now, false).told, ElementsAre(HasSubstr("max_position_embeddings")));
}

TEST(ResumeRules, another_length_of_the_stage_that_goes_on_is_refused_and_of_a_stage_that_begins_is_not) {
  RunFacts before = facts(), now = facts();
  before.sequence_tokens = 16;
  now.sequence_tokens = 24;
  EXPECT_THAT(
      message_of<ConfigError>([&] { decide_resume(before, now, false); }),
      AllOf(HasSubstr("--max_seq_length"), HasSubstr("16 -> 24"), HasSubstr("--resume_with_new_data")));
  EXPECT_TRUE(decide_resume(before, now, true).data_anew);
  now.sequence_tokens = 0;
  EXPECT_FALSE(decide_resume(before, now, false).data_anew);
}

TEST(ResumeRules, numbers_of_batches_that_no_run_has_are_refused_with_the_file_that_holds_them) {
  for (const char* option :
       {"per_device_train_batch_size", "gradient_accumulation_steps", "ulysses", "ring"}) {
    RunFacts before = facts();
    before.options_origin = "step-4/trainer_state.json: options";
    before.options[option] = int64_t{1} << 30;
    EXPECT_THAT(message_of<DataError>([&] { decide_resume(before, facts(), false); }),
                AllOf(HasSubstr("step-4/trainer_state.json"), HasSubstr(option)));
  }
  RunFacts largest = facts();
  largest.ranks = kMostRanks;
  for (const char* option : {"per_device_train_batch_size", "gradient_accumulation_steps"})
    largest.options[option] = int64_t{1} << 20;
  EXPECT_EQ(global_batch_samples(largest), (int64_t{1} << 40) * kMostRanks);
}

TEST(ResumeRules, ranks_and_the_global_batch_are_told_and_the_batch_can_be_kept) {
  RunFacts before = facts(), now = facts();
  before.options["gradient_accumulation_steps"] = 4;
  now.options["gradient_accumulation_steps"] = 4;
  now.ranks = 4;
  EXPECT_THAT(decide_resume(before, now, false).told,
              ElementsAre("ranks 2 -> 4", HasSubstr("global batch 64 -> 128 samples")));
  now.steps_follow_batch = true;
  EXPECT_THAT(message_of<ConfigError>([&] { decide_resume(before, now, false); }),
              AllOf(HasSubstr("64 samples a step"), HasSubstr("128"), HasSubstr("--keep_global_batch")));
  EXPECT_EQ(accumulation_to_keep(before, now), 2);
  now.options["ulysses"] = 4;  // one group
  EXPECT_EQ(accumulation_to_keep(before, now), 8);
  now.options["ulysses"] = 1;
  now.options["per_device_train_batch_size"] = 12;
  EXPECT_THAT(message_of<ConfigError>([&] { accumulation_to_keep(before, now); }),
              AllOf(HasSubstr("64 samples"), HasSubstr("48 at once")));
}

}  // namespace
}  // namespace trireme
