#include "trireme/model/model_config.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/model/model_layout.h"

#include "tests/model/config_text.h"
#include "tests/support/source_folder.h"

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using config_test::parse;
using config_test::refusal;
using config_test::small;

TEST(ModelConfig, silent_keys_have_the_defaults_of_transformers) {
  const ModelConfig llama = parse(R"({"model_type":"llama"})");
  EXPECT_EQ(llama.vocab_size, 32000);
  EXPECT_EQ(llama.intermediate_size, 11008);
  EXPECT_EQ(llama.num_key_value_heads, 32);
  EXPECT_EQ(llama.head_dim, 128);
  EXPECT_EQ(llama.max_position_embeddings, 2048);
  EXPECT_EQ(llama.bos_token_id, 1);
  EXPECT_EQ(llama.eos_token_id, 2);
  EXPECT_FALSE(llama.pad_token_id.has_value());
  EXPECT_DOUBLE_EQ(llama.rope.theta, 10000);
  EXPECT_THAT(llama.layer_window, Each(0));

  const ModelConfig mistral = parse(R"({"model_type":"mistral"})");
  EXPECT_EQ(mistral.intermediate_size, 14336);
  EXPECT_EQ(mistral.num_key_value_heads, 8);
  EXPECT_EQ(mistral.max_position_embeddings, 131072);
  EXPECT_THAT(mistral.layer_window, Each(4096));
  EXPECT_EQ(mistral.layer_window.size(), 32U);

  const ModelConfig qwen2 = parse(R"({"model_type":"qwen2"})");
  EXPECT_EQ(qwen2.vocab_size, 151936);
  EXPECT_EQ(qwen2.num_key_value_heads, 32);
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.output_bias);
  EXPECT_FALSE(qwen2.qk_norm);
  EXPECT_THAT(qwen2.layer_window, Each(0));
  EXPECT_FALSE(qwen2.bos_token_id.has_value());

  const ModelConfig gemma = parse(R"({"model_type":"gemma"})");
  EXPECT_EQ(gemma.hidden_size, 3072);
  EXPECT_EQ(gemma.num_key_value_heads, 16);
  EXPECT_TRUE(gemma.tie_word_embeddings && gemma.norms_add_one && !gemma.post_norms);
  EXPECT_EQ(gemma.pad_token_id, 0);
  EXPECT_DOUBLE_EQ(gemma.embedding_scale, std::sqrt(3072.0));
  const ModelConfig gemma2 = parse(R"({"model_type":"gemma2"})");
  EXPECT_TRUE(gemma2.post_norms && !gemma2.qk_norm && gemma2.norms_add_one);
  EXPECT_EQ(gemma2.layer_window[0], 4096);
  EXPECT_EQ(gemma2.layer_window[1], 0) << "every second sees all";
  EXPECT_DOUBLE_EQ(gemma2.score_cap, 50);
  EXPECT_DOUBLE_EQ(gemma2.logit_cap, 30);
  EXPECT_DOUBLE_EQ(gemma2.softmax_scale(), 1.0 / 16);
  const ModelConfig uncapped =
      parse(R"({"model_type":"gemma2","attn_logit_softcapping":null,"final_logit_softcapping":null})");
  EXPECT_DOUBLE_EQ(uncapped.score_cap, 0);
  EXPECT_DOUBLE_EQ(uncapped.logit_cap, 0);

  const ModelConfig gemma3 = parse(R"({"model_type":"gemma3_text"})");
  EXPECT_EQ(gemma3.num_hidden_layers, 26);
  EXPECT_TRUE(gemma3.post_norms && gemma3.qk_norm);
  EXPECT_EQ(std::count(gemma3.layer_window.begin(), gemma3.layer_window.end(), 4096), 22);
  EXPECT_EQ(gemma3.layer_window[5], 0) << "every sixth sees all";
  EXPECT_DOUBLE_EQ(gemma3.rope.theta, 1'000'000);
  EXPECT_DOUBLE_EQ(gemma3.window_rope.value().theta, 10000);

  const ModelConfig qwen3 = parse(R"({"model_type":"qwen3","hidden_size":2560})");
  EXPECT_EQ(qwen3.head_dim, 128) << "not hidden_size / heads";
  EXPECT_TRUE(qwen3.qk_norm);
  EXPECT_FALSE(qwen3.qkv_bias);
}

TEST(ModelConfig, biases_are_where_the_family_has_them) {
  const ModelConfig llama = parse(small("llama", R"("attention_bias":true,"mlp_bias":true)"));
  EXPECT_TRUE(llama.qkv_bias && llama.output_bias && llama.mlp_bias);
  const ModelConfig qwen3 = parse(small("qwen3", R"("attention_bias":true,"head_dim":16)"));
  EXPECT_TRUE(qwen3.qkv_bias && qwen3.output_bias);
  EXPECT_THAT(refusal(small("mistral", R"("attention_bias":true)")), HasSubstr("attention_bias is true"));
  EXPECT_THAT(refusal(small("qwen2", R"("mlp_bias":true)")), HasSubstr("mlp_bias is true"));
}

TEST(ModelConfig, null_means_the_default_where_transformers_allows_it) {
  const ModelConfig config = parse(
      R"({"model_type":"llama","hidden_size":64,"num_attention_heads":4,"num_key_value_heads":null,"head_dim":null,)"
      R"("rope_scaling":null,"pad_token_id":null,"eos_token_id":[7,8],"bos_token_id":null})");
  EXPECT_EQ(config.num_key_value_heads, 4);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.eos_token_id, 7) << "the first of several";
  EXPECT_FALSE(config.bos_token_id.has_value());
}

TEST(ModelConfig, windows_follow_each_family_s_rule) {
  EXPECT_THAT(parse(small("mistral", R"("sliding_window":17)")).layer_window, ElementsAre(17, 17, 17, 17));
  EXPECT_THAT(parse(small("mistral", R"("sliding_window":null)")).layer_window, Each(0));
  EXPECT_THAT(parse(small("qwen2", R"("sliding_window":17)")).layer_window, Each(0))
      << "use_sliding_window is false";
  EXPECT_THAT(parse(small("qwen2", R"("use_sliding_window":true,"sliding_window":17)")).layer_window, Each(0))
      << "max_window_layers is 28";
  EXPECT_THAT(parse(small("qwen2", R"("use_sliding_window":true,"sliding_window":17,"max_window_layers":1)"))
                  .layer_window,
              ElementsAre(0, 17, 17, 17));
  EXPECT_THAT(
      parse(small("qwen3", R"("use_sliding_window":true,"sliding_window":null,"max_window_layers":0)"))
          .layer_window,
      Each(0));
  const std::string types =
      R"("layer_types":["full_attention","sliding_attention","full_attention","sliding_attention"])";
  EXPECT_THAT(parse(small("qwen3", R"("use_sliding_window":true,"sliding_window":9,)" + types)).layer_window,
              ElementsAre(0, 9, 0, 9));
  EXPECT_THAT(refusal(small("qwen3", types)),
              AllOf(HasSubstr("layer 1 slides"), HasSubstr("use_sliding_window")));
  EXPECT_THAT(refusal(small("llama", types)), HasSubstr("layer_types"));
  EXPECT_THAT(refusal(small("mistral", R"("sliding_window":9,)" + types)),
              HasSubstr("layer 0 is full_attention"));
  EXPECT_THAT(refusal(small("qwen2", R"("layer_types":["full_attention"])")),
              HasSubstr("num_hidden_layers = 4"));
  EXPECT_THAT(
      refusal(
          small("qwen2",
                R"("layer_types":["full_attention","full_attention","full_attention","chunked_attention"])")),
      HasSubstr("chunked_attention"));
  EXPECT_THAT(refusal(small("mistral", R"("sliding_window":0)")), HasSubstr("sliding_window is 0"));
}

TEST(ModelConfig, rotary_keys_are_understood_in_both_forms) {
  const RopeConfig fresh =
      parse(small("llama",
                  R"("rope_parameters":{"rope_type":"llama3","rope_theta":5e5,"factor":8,)"
                  R"("low_freq_factor":1,"high_freq_factor":4,"original_max_position_embeddings":64})"))
          .rope;
  const RopeConfig old =
      parse(small("llama",
                  R"("rope_theta":500000,"rope_scaling":{"type":"llama3","factor":8.0,)"
                  R"("low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":64})"))
          .rope;
  for (const RopeConfig& rope : {fresh, old}) {
    EXPECT_EQ(rope.kind, RopeKind::llama3);
    EXPECT_DOUBLE_EQ(rope.theta, 500000);
    EXPECT_DOUBLE_EQ(rope.factor, 8);
    EXPECT_EQ(rope.original_max_position_embeddings, 64);
  }
  EXPECT_EQ(parse(small("qwen2", R"("rope_scaling":{"type":"yarn","factor":4.0})"))
                .rope.original_max_position_embeddings,
            256);
}

TEST(ModelConfig, rotary_keys_that_are_wrong_or_not_built_are_refused_by_name) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"("rope_scaling":{"type":"longrope","factor":2.0})", "rope_scaling.type is \"longrope\""},
      {R"("rope_parameters":{"rope_type":"axial"})", "rope_parameters.rope_type is \"axial\""},
      {R"("rope_parameters":{"rope_type":"proportional","partial_rotary_factor":1.5})",
       "partial_rotary_factor is 1.5"},
      {R"("rope_scaling":{"type":"linear"})", "rope_scaling.factor is absent"},
      {R"("rope_scaling":{"type":"linear","factor":"two"})",
       "rope_scaling.factor is \"two\", expected a finite number"},
      {R"("rope_scaling":{"type":"linear","factor":0.5})", "rope_scaling.factor is 0.5"},
      {R"("rope_scaling":{"factor":4.0})", "needs a rope_type"},
      {R"("rope_scaling":{"type":"llama3","factor":8.0,"high_freq_factor":4.0})",
       "low_freq_factor is absent"},
      {R"("rope_scaling":{"type":"default","mrope_section":[16,24,24]})", "mrope_section"},
      {R"("rope_scaling":{"type":"dynamic","factor":2.0,"original_max_position_embeddings":64})",
       "ignores this key"},
      {R"("rope_parameters":{"full_attention":{"rope_type":"default"}})", "differ from layer to layer"},
      {R"("rope_parameters":{"rope_type":"default","partial_rotary_factor":0.5})",
       "partial_rotary_factor is 0.5"},
      {R"("partial_rotary_factor":0.5)", "partial_rotary_factor is 0.5"},
      {R"("rope_theta":0)", "rope_theta is 0"},
      {R"("rope_scaling":[1])", "expected a JSON object"},
      {R"("rope_scaling":{"type":"yarn","factor":4.0,"beta_fast":1,"beta_slow":32})",
       "beta_fast >= beta_slow"},
      {R"("rope_scaling":{"type":"yarn","factor":4.0,"attention_factor":-1})", "attention_factor is -1"},
  };
  for (const auto& [keys, expected] : cases)
    EXPECT_THAT(refusal(small("llama", keys)), AllOf(HasSubstr("config.json"), HasSubstr(expected))) << keys;
}

// Evaluation drops nothing; whether training may leave it out is train_options.h's to say.
TEST(ModelConfig, dropout_is_read_with_every_field_that_asks_for_it) {
  using Fields = std::map<std::string, double>;
  EXPECT_EQ(parse(small("llama", R"("attention_dropout":0.1)")).dropout,
            (Fields{{"attention_dropout", 0.1}}));
  EXPECT_EQ(parse(small("llama", R"("attention_dropout":0.0)")).dropout, Fields{});
  EXPECT_EQ(parse(R"({"model_type":"bert"})").dropout,
            (Fields{{"attention_probs_dropout_prob", 0.1}, {"hidden_dropout_prob", 0.1}}));
  EXPECT_EQ(
      parse(R"({"model_type":"bert","hidden_dropout_prob":0.2,"attention_probs_dropout_prob":0})").dropout,
      (Fields{{"hidden_dropout_prob", 0.2}}));
}

TEST(ModelConfig, what_is_not_built_is_refused_by_name) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"("hidden_act":"gelu")", "hidden_act is \"gelu\""},
      {R"("quantization_config":{"bits":4})", "quantization_config"},
      {R"("num_experts":8)", "num_experts is 8"},
      {R"("num_local_experts":8)", "num_local_experts is 8"},
      {R"("final_logit_softcapping":30.0)", "final_logit_softcapping is 30"},
      {R"("architectures":["LlamaForSequenceClassification"])", "architectures"},
      {R"("is_encoder_decoder":true)", "is_encoder_decoder is true"},
      {R"("use_sliding_window":true)", "use_sliding_window is true"},
      {R"("is_causal":false)", "is_causal is false"},
      {R"("is_causal":null)", "is_causal is null"},
  };
  for (const auto& [keys, expected] : cases)
    EXPECT_THAT(refusal(small("llama", keys)), HasSubstr(expected)) << keys;
  EXPECT_THAT(refusal(small("phi3")),
              AllOf(HasSubstr("\"phi3\""), HasSubstr("Trireme trains llama, mistral, "), HasSubstr(" and ")));
  EXPECT_THAT(refusal("{}"), HasSubstr("model_type is missing"));
  EXPECT_THAT(refusal("[]"), HasSubstr("expected a JSON object"));
  EXPECT_EQ(refusal(small(
                "llama",
                R"("pretraining_tp":2,"attention_dropout":0.0,"use_cache":true,"torch_dtype":"bfloat16")")),
            "no error");
}

// A small encoder with more keys.
std::string small_bert(const std::string& more = "") {
  return R"({"model_type":"bert","hidden_size":64,"intermediate_size":96,"num_attention_heads":4,"vocab_size":100,)"
         R"("num_hidden_layers":4,"max_position_embeddings":256,"hidden_dropout_prob":0.0,)"
         R"("attention_probs_dropout_prob":0)" +
         (more.empty() ? "" : "," + more) + "}";
}

TEST(ModelConfig, an_encoder_has_full_attention_and_the_defaults_of_transformers) {
  const ModelConfig base =
      parse(R"({"model_type":"bert","hidden_dropout_prob":0.0,"attention_probs_dropout_prob":0.0})");
  EXPECT_EQ(base.causality, Causality::full);
  EXPECT_FALSE(base.rotates);
  EXPECT_FALSE(base.shifts_labels());
  EXPECT_EQ(base.vocab_size, 30522);
  EXPECT_EQ(base.hidden_size, 768);
  EXPECT_EQ(base.intermediate_size, 3072);
  EXPECT_EQ(base.num_key_value_heads, 12);
  EXPECT_EQ(base.head_dim, 64);
  EXPECT_EQ(base.max_position_embeddings, 512);
  EXPECT_EQ(base.type_vocab_size, 2);
  EXPECT_DOUBLE_EQ(base.norm_eps, 1e-12);
  EXPECT_EQ(base.pad_token_id, 0);
  EXPECT_THAT(base.layer_window, Each(0));
  EXPECT_EQ(base.layer_window.size(), 12U);
  EXPECT_EQ(make_model_layout(base).parameter_count(), 109'514'298) << "bert-base-uncased as BertForMaskedLM";
  const ModelConfig llama = parse(small("llama"));
  EXPECT_EQ(llama.causality, Causality::causal);
  EXPECT_TRUE(llama.rotates && llama.shifts_labels());
}

TEST(ModelConfig, keys_of_published_encoders_that_change_nothing_are_accepted) {
  const ModelConfig config = parse(small_bert(
      R"("architectures":["BertForPreTraining"],"hidden_act":"gelu","position_embedding_type":"absolute",)"
      R"("classifier_dropout":0.1,"gradient_checkpointing":false,"use_cache":true,"is_decoder":false,)"
      R"("pad_token_id":null,"layer_norm_eps":1e-6)"));
  EXPECT_FALSE(config.pad_token_id.has_value());
  EXPECT_DOUBLE_EQ(config.norm_eps, 1e-6);
  EXPECT_EQ(config.raw["architectures"], Json::array({"BertForMaskedLM"})) << "what export writes";
}

TEST(ModelConfig, what_is_not_built_of_encoders_is_refused_by_name) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"("hidden_act":"gelu_new")", "hidden_act is \"gelu_new\""},
      {R"("hidden_act":"relu")", "hidden_act is \"relu\""},
      {R"("position_embedding_type":"relative_key")", "position_embedding_type is \"relative_key\""},
      {R"("is_decoder":true)", "is_decoder is true"},
      {R"("add_cross_attention":true)", "add_cross_attention is true"},
      {R"("tie_word_embeddings":false)", "tie_word_embeddings is false"},
      {R"("architectures":["BertModel"])", "BertForMaskedLM"},
      {R"("architectures":["BertForSequenceClassification"])", "architectures"},
      {R"("quantization_config":{"bits":4})", "quantization_config"},
      {R"("type_vocab_size":0)", "type_vocab_size is 0"},
      {R"("layer_norm_eps":0)", "layer_norm_eps is 0"},
      {R"("intermediate_size":-1)", "intermediate_size is -1"},
  };
  for (const auto& [keys, expected] : cases)
    EXPECT_THAT(refusal(small_bert(keys)), HasSubstr(expected)) << keys;
  EXPECT_THAT(refusal(R"({"model_type":"bert","hidden_dropout_prob":0,"attention_probs_dropout_prob":0,)"
                      R"("hidden_size":60,"num_attention_heads":7})"),
              HasSubstr("hidden_size 60 is not a multiple"));
}

TEST(ModelConfig, attention_pairs_are_half_of_the_square_where_attention_is_causal) {
  EXPECT_DOUBLE_EQ(parse(small("llama")).attention_pairs(100).common, 4 * 100.0 * 100 / 2);
  EXPECT_DOUBLE_EQ(parse(small_bert()).attention_pairs(100).common, 4 * 100 * 100);
  const ModelConfig window = parse(small("mistral", R"("sliding_window":10)"));
  EXPECT_DOUBLE_EQ(window.attention_pairs(8).common, 4 * 8.0 * 8 / 2);
  EXPECT_DOUBLE_EQ(window.attention_pairs(100).common, 4 * (10.0 * 100 - 10.0 * 10 / 2));
  const AttentionPairs of_kinds =
      parse(small("gemma4_text", R"("hidden_size_per_layer_input":0,"sliding_window":10)"))
          .attention_pairs(100);
  EXPECT_DOUBLE_EQ(of_kinds.common, 3 * (10.0 * 100 - 10.0 * 10 / 2));
  EXPECT_DOUBLE_EQ(of_kinds.full, 100.0 * 100 / 2) << "the last of four layers";
}

// A row for each of 8 query blocks: its own and the one before, the first, and every fourth.
TEST(ModelConfig, attention_pairs_of_sparse_blocks_are_the_share_of_causal_blocks_that_is_kept) {
  const std::string rows = "x|xx|xxx|x.xx|x..xx|x..xxx|x..x.xx|x..x..xx";
  const auto kept = static_cast<double>(std::ranges::count(rows, 'x'));
  const SparseBlocks sparse{64, 2, 1, 4};
  EXPECT_DOUBLE_EQ(parse(small("llama")).attention_pairs(512, sparse).common,
                   4 * (512.0 * 512 / 2) * kept / 36);
}

TEST(ModelConfig, nonsense_sizes_and_wrong_types_name_the_key) {
  const auto with = [](const std::string& keys) { return refusal(R"({"model_type":"qwen2",)" + keys + "}"); };
  EXPECT_THAT(with(R"("hidden_size":-64)"), HasSubstr("hidden_size is -64"));
  EXPECT_THAT(with(R"("vocab_size":0)"), HasSubstr("vocab_size is 0"));
  EXPECT_THAT(with(R"("hidden_size":"64")"), HasSubstr("hidden_size is \"64\", expected a whole number"));
  EXPECT_THAT(with(R"("hidden_size":64.5)"), HasSubstr("expected a whole number"));
  EXPECT_THAT(with(R"("vocab_size":18446744073709551615)"), HasSubstr("vocab_size"));
  EXPECT_THAT(with(R"("tie_word_embeddings":1)"), HasSubstr("expected true or false"));
  EXPECT_THAT(with(R"("num_attention_heads":6,"num_key_value_heads":4,"hidden_size":60)"),
              HasSubstr("not a multiple of num_key_value_heads 4"));
  EXPECT_THAT(with(R"("num_attention_heads":3,"num_key_value_heads":3,"hidden_size":64)"),
              HasSubstr("hidden_size 64 is not a multiple"));
  EXPECT_THAT(with(R"("num_attention_heads":4,"num_key_value_heads":4,"hidden_size":60)"),
              HasSubstr("head_dim is 15"));
  EXPECT_THAT(with(R"("head_dim":0)"), HasSubstr("head_dim is 0"));
  EXPECT_THAT(with(R"("head_dim":65538)"), HasSubstr("an even width, 2 to 65536"));
  EXPECT_THAT(with(R"("rms_norm_eps":0)"), HasSubstr("rms_norm_eps is 0"));
  EXPECT_THAT(with(R"("eos_token_id":"</s>")"), HasSubstr("eos_token_id"));
}

TEST(ModelConfig, sizes_whose_parameters_63_bits_cannot_count_are_refused) {
  for (const std::string& file :
       {small("llama", R"("hidden_size":2147483648,"head_dim":16,"vocab_size":2147483648)"),
        small("llama", R"("hidden_size":2147483648,"head_dim":16,"intermediate_size":2147483648)"),
        small("gemma4_text", R"("num_hidden_layers":100000,"hidden_size_per_layer_input":65536,)"
                             R"("vocab_size_per_layer_input":2147483648)")})
    EXPECT_THAT(refusal(file), HasSubstr("more parameters than can be counted")) << file;
  EXPECT_EQ(refusal(small("llama", R"("vocab_size":2147483648)")), "no error");
}

TEST(ModelConfig, parameters_are_counted_as_published) {
  const ModelConfig llama3_8b = parse(
      R"({"model_type":"llama","vocab_size":128256,"hidden_size":4096,"intermediate_size":14336,"num_hidden_layers":32,)"
      R"("num_attention_heads":32,"num_key_value_heads":8})");
  EXPECT_EQ(make_model_layout(llama3_8b).parameter_count(), 8030261248);
  EXPECT_EQ(make_model_layout(llama3_8b).matmul_parameter_count(), 8030261248 - 128256 * 4096 - 65 * 4096);
  const ModelConfig qwen3_4b = parse(
      R"({"model_type":"qwen3","vocab_size":151936,"hidden_size":2560,"intermediate_size":9728,"num_hidden_layers":36,)"
      R"("num_attention_heads":32,"num_key_value_heads":8,"head_dim":128,"tie_word_embeddings":true})");
  EXPECT_EQ(make_model_layout(qwen3_4b).parameter_count(), 4022468096);
  const ModelConfig qwen2_half_b = parse(
      R"({"model_type":"qwen2","vocab_size":151936,"hidden_size":896,"intermediate_size":4864,"num_hidden_layers":24,)"
      R"("num_attention_heads":14,"num_key_value_heads":2,"tie_word_embeddings":true})");
  EXPECT_EQ(make_model_layout(qwen2_half_b).parameter_count(), 494032768);
}

// fixtures/configs.json, made by make_config_fixtures.py.
TEST(ModelConfig, random_files_mean_what_they_mean_to_transformers) {
  const Json cases = read_json(testing::source_folder() / "tests/model/fixtures/configs.json");
  ASSERT_GE(cases.size(), 40U);
  const std::map<RopeKind, std::string> kinds = {{RopeKind::standard, "default"},
                                                 {RopeKind::linear, "linear"},
                                                 {RopeKind::dynamic_ntk, "dynamic"},
                                                 {RopeKind::yarn, "yarn"}};
  for (const Json& item : cases) {
    SCOPED_TRACE(item["config"].dump());
    const Json& expected = item["expected"];
    const ModelConfig config = parse_model_config(item["config"], "random");
    Json shapes = Json::object();
    int64_t elements = 0;
    for (const UnitSpec& unit : make_model_layout(config).units)
      for (const ParameterSpec& spec : unit.parameters) {
        shapes[spec.name] = spec.shape;
        elements += spec.elements;
      }
    EXPECT_EQ(shapes, expected["shapes"]);
    EXPECT_EQ(make_model_layout(config).parameter_count(), elements);
    EXPECT_EQ(Json(config.layer_window), expected["layer_window"]);
    EXPECT_EQ(kinds.at(config.rope.kind), expected["rope_type"]);
    EXPECT_EQ(config.rope.theta, expected["rope_theta"]);
    // A linear scaling of Gemma 3 is counted from what it stretched (rope_config.cpp).
    if (!config.window_rope || config.rope.kind != RopeKind::linear) {
      EXPECT_EQ(config.rope.original_max_position_embeddings, expected["original_max_position_embeddings"]);
    }
    EXPECT_EQ(config.norm_eps, expected["rms_norm_eps"]);
    EXPECT_EQ(config.bos_token_id ? Json(*config.bos_token_id) : Json(), expected["bos_token_id"]);
    EXPECT_EQ(config.eos_token_id ? Json(*config.eos_token_id) : Json(), expected["eos_token_id"]);
    EXPECT_EQ(config.experts_per_token, expected.value("experts_per_token", 0));
    EXPECT_EQ(config.expert_weights_sum_to_one, expected.value("weights_sum_to_one", false));
    if (!expected.contains("softmax_scale")) continue;
    EXPECT_DOUBLE_EQ(config.softmax_scale(), expected["softmax_scale"]);
    EXPECT_EQ(config.pad_token_id ? Json(*config.pad_token_id) : Json(), expected["pad_token_id"]);
    EXPECT_DOUBLE_EQ(config.score_cap, expected.value("score_cap", 0.0));
    EXPECT_DOUBLE_EQ(config.logit_cap, expected.value("logit_cap", 0.0));
    const Json sliding_theta = config.window_rope ? Json(config.window_rope->theta) : Json();
    EXPECT_EQ(sliding_theta, expected.value("sliding_theta", Json()));
  }
}

// Qwen3.5 9B: transformers' own sizes.
TEST(ModelConfig, qwen3_5_has_delta_nets_but_for_each_fourth_layer) {
  const ModelConfig config = parse(R"({"model_type":"qwen3_5_text"})");
  EXPECT_EQ(config.delta_net, (DeltaNet{{16, 32, 128, 128}, 4}));
  EXPECT_EQ(std::ranges::count(config.delta_layers, true), 24);
  EXPECT_TRUE(config.has_delta_net(2) && !config.has_delta_net(3));
  EXPECT_EQ(config.heads(), (AttentionHeads{16, 4, 256, false, true}));
  EXPECT_TRUE(config.qk_norm && config.norms_add_one);
  EXPECT_DOUBLE_EQ(config.rope.turning_share, 0.25);
  const ModelLayout layout = make_model_layout(config);
  const int64_t m = 4096, mlp = 3 * m * 12288, norms = 2 * m,
                attention = m * (2 * 4096 + 2 * 1024) + 4096 * m + 2 * 256,
                delta = m * (8192 + 2 * 32 + 4096) + 8192 * 4 + 2 * 32 + 128 + 4096 * m;
  EXPECT_EQ(layout.parameter_count(), 32 * (mlp + norms) + 24 * delta + 8 * attention + 2 * 248320 * m + m);
  // No pair of query and key in layers without attention.
  EXPECT_DOUBLE_EQ(config.attention_pairs(1000).common, 8 * 1000.0 * 1000 / 2);
}

TEST(ModelConfig, qwen3_5_says_layers_and_the_share_that_turns) {
  const auto qwen = [](const std::string& keys) { return small("qwen3_5_text", keys); };
  const ModelConfig config = parse(qwen(
      R"("layer_types":["full_attention","linear_attention","linear_attention","full_attention"],"head_dim":16,)"
      R"("rope_parameters":{"rope_theta":5000.0,"partial_rotary_factor":0.5,"mrope_section":[2,1,1],)"
      R"("mrope_interleaved":true})"));
  EXPECT_EQ(config.delta_layers, (std::vector<bool>{false, true, true, false}));
  EXPECT_DOUBLE_EQ(config.rope.turning_share, 0.5);
  EXPECT_DOUBLE_EQ(config.rope.theta, 5000);
  const ModelConfig without = parse(qwen(R"("full_attention_interval":1)"));
  EXPECT_FALSE(without.delta_net);
  EXPECT_TRUE(without.delta_layers.empty());
  const auto refused = [&](const std::string& keys) { return refusal(qwen(keys)); };
  EXPECT_THAT(refused(R"("linear_num_value_heads":24)"), HasSubstr("not a multiple of 16 key heads"));
  EXPECT_THAT(refused(R"("layer_types":["full_attention","mamba","full_attention","full_attention"])"),
              AllOf(HasSubstr("layer 1"), HasSubstr("linear_attention")));
  EXPECT_THAT(refused(R"("rope_parameters":{"rope_type":"proportional"})"), HasSubstr("rope_type"));
  EXPECT_THAT(refused(R"("partial_rotary_factor":1.5)"), HasSubstr("at most 1"));
  EXPECT_THAT(refused(R"("head_dim":16,"partial_rotary_factor":0.2)"), HasSubstr("even"));
}

TEST(ModelConfig, what_gemma_has_and_is_not_built_is_refused_with_what_to_do) {
  EXPECT_THAT(refusal(small("gemma2", R"("attn_logit_softcapping":0)")), HasSubstr("attn_logit_softcapping"));
  EXPECT_THAT(refusal(small("gemma2", R"("final_logit_softcapping":-1)")),
              HasSubstr("final_logit_softcapping"));
  EXPECT_THAT(refusal(small("gemma2", R"("num_attention_heads":6)")),
              HasSubstr("hidden_size 64 is not a multiple"));
  EXPECT_THAT(refusal(small("mistral4")), HasSubstr("trireme.parallelize takes them"));
  EXPECT_THAT(refusal(small("ministral3")),
              AllOf(HasSubstr("llama_4_scaling_beta"), HasSubstr("scales its queries")));
  EXPECT_THAT(refusal(small("ministral")), AllOf(HasSubstr("head_dim"), HasSubstr("needs it")));
  EXPECT_THAT(
      refusal(small("ministral3", R"("original_max_position_embeddings":64,"rope_parameters":)"
                                  R"({"llama_4_scaling_beta":0.1,"original_max_position_embeddings":32})")),
      HasSubstr("inside rope_parameters it is 32"));
  EXPECT_THAT(refusal(small("ministral3", R"("rope_parameters":{"llama_4_scaling_beta":0.1})")),
              HasSubstr("original_max_position_embeddings"));
  EXPECT_THAT(refusal(small("gemma3_text", R"("attn_logit_softcapping":50.0)")),
              HasSubstr("attn_logit_softcapping"));
  EXPECT_THAT(refusal(small("gemma3_text", R"("final_logit_softcapping":30)")),
              HasSubstr("final_logit_softcapping"));
  EXPECT_THAT(refusal(small("gemma3_text", R"("use_bidirectional_attention":true)")),
              HasSubstr("use_bidirectional_attention"));
  EXPECT_THAT(refusal(small("gemma3_text", R"("hidden_activation":"gelu")")), HasSubstr("hidden_activation"));
  EXPECT_THAT(refusal(small("gemma3_text", R"("sliding_window":null)")), HasSubstr("sliding_window"));
  EXPECT_THAT(refusal(small("gemma3_text", R"("query_pre_attn_scalar":0)")),
              HasSubstr("query_pre_attn_scalar"));
  EXPECT_THAT(refusal(small("gemma3_text", R"("rope_scaling":{"type":"linear","factor":8.0})")),
              HasSubstr("write rope_type"));
  EXPECT_THAT(
      refusal(small("gemma3_text", R"("rope_scaling":{"rope_type":"linear","factor":8.0},)"
                                   R"("rope_parameters":{"sliding_attention":{"rope_theta":300.0}})")),
      HasSubstr("leave one of them out"));
  EXPECT_THAT(refusal(small("gemma3_text", R"("rope_parameters":{"rope_type":"default"})")),
              HasSubstr("expected full_attention and sliding_attention"));
  EXPECT_THAT(refusal(small("gemma", R"("hidden_act":"silu")")), HasSubstr("hidden_act"));
  EXPECT_THAT(refusal(small("llama", R"("query_pre_attn_scalar":64)")), HasSubstr("query_pre_attn_scalar"));
}

TEST(ModelConfig, a_padding_id_is_one_of_the_vocabulary) {
  for (const char* id : {"100", "5000", "-101"})
    EXPECT_THAT(refusal(small("llama", cat(R"("pad_token_id":)", id))),
                AllOf(HasSubstr(cat("pad_token_id is ", id)), HasSubstr("vocabulary of 100")));
  EXPECT_EQ(parse(small("llama", R"("pad_token_id":-1)")).pad_token_id, -1)
      << "the last, as in Llama's first files";
  EXPECT_THAT(refusal(R"({"model_type":"bert","vocab_size":90,"pad_token_id":90})"),
              HasSubstr("pad_token_id is 90"));
}

TEST(ModelConfig, a_missing_file_is_named) {
  EXPECT_THAT(testing::message_of<DataError>([] { read_model_config("/nonexistent"); }),
              HasSubstr("/nonexistent/config.json"));
}

}  // namespace
}  // namespace trireme
