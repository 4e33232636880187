#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/model/model_layout.h"

#include "tests/model/config_text.h"

namespace trireme::gemma4_config_test {
namespace {

using config_test::parse;
using config_test::refusal;
using config_test::small;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Gemma 4 31B: 30.7 billion parameters, of which each layer's scale is one.
TEST(Gemma4Config, layers_with_full_attention_have_other_heads) {
  const std::string sizes =
      R"({"model_type":"gemma4_text","hidden_size":5376,"intermediate_size":21504,"num_hidden_layers":60,)"
      R"("num_attention_heads":32,"num_key_value_heads":16,"hidden_size_per_layer_input":0,)"
      R"("attention_k_eq_v":true)";
  const ModelConfig config =
      parse(sizes + R"(,"global_head_dim":512,"num_global_key_value_heads":4,"final_logit_softcapping":30})");
  EXPECT_EQ(config.heads_of(0), (AttentionHeads{32, 16, 256, false}));
  EXPECT_EQ(config.heads_of(5), (AttentionHeads{32, 4, 512, true}));
  EXPECT_EQ(std::count(config.layer_window.begin(), config.layer_window.end(), 0), 10);
  EXPECT_EQ(config.layer_window[0], 512);
  EXPECT_DOUBLE_EQ(config.softmax_scale(), 1);
  EXPECT_DOUBLE_EQ(config.logit_cap, 30);
  EXPECT_TRUE(config.v_norm && config.qk_norm && config.post_norms && !config.norms_add_one);
  EXPECT_EQ(config.rope.kind, RopeKind::proportional);
  EXPECT_DOUBLE_EQ(config.rope.turning_share, 0.25);
  EXPECT_DOUBLE_EQ(config.window_rope->theta, 10000);
  const int64_t mlp = 3 * 5376 * 21504, norms = 4 * 5376, sliding = 5376 * (2 * 8192 + 2 * 4096) + 2 * 256,
                full = 5376 * (2 * 16384 + 2048) + 2 * 512;
  EXPECT_EQ(make_model_layout(config).parameter_count(),
            60 * (mlp + norms + 1) + 50 * sliding + 10 * full + 262144 * 5376 + 5376);

  EXPECT_EQ(parse(sizes + "}").heads_of(59), (AttentionHeads{32, 16, 512, true}));
  const std::string by_layer = R"({"head_dim":512,"num_key_value_heads":4})";
  std::string every_sixth;
  for (int layer = 5; layer < 60; layer += 6)
    every_sixth += cat(layer == 5 ? "\"0" : ",\"", layer, "\":", by_layer);
  EXPECT_EQ(parse(cat(sizes, R"(,"per_layer_config":{)", every_sixth, "}}")).full_heads, config.full_heads)
      << "as transformers 5 writes it again";
  for (const char* none : {"{}", "null"})
    EXPECT_EQ(parse(cat(sizes, R"(,"global_head_dim":512,"per_layer_config":)", none, "}")).heads_of(5),
              (AttentionHeads{32, 16, 256, true}))
        << "no layer differs";
  for (const std::string& other :
       {cat(R"("5":)", by_layer), std::string(R"("5":{"head_dim":512,"sliding_window":9})"),
        cat(every_sixth, R"(,"06":)", by_layer), cat(every_sixth, R"(,"5":)", by_layer)})
    EXPECT_THAT(refusal(cat(sizes, R"(,"per_layer_config":{)", other, "}}")), HasSubstr("per_layer_config"))
        << other;
}

// Gemma 4 E2B: 4.6 billion parameters, of which 2.3 lie in the table of layers' inputs.
TEST(Gemma4Config, the_last_layers_take_keys_of_earlier_ones_and_each_is_told_of_its_token) {
  Json json = parse_json(
      R"({"model_type":"gemma4_text","hidden_size":1536,"intermediate_size":6144,"num_hidden_layers":35,)"
      R"("num_attention_heads":8,"num_key_value_heads":1,"num_kv_shared_layers":20,"use_double_wide_mlp":true})",
      "a test");
  for (int layer = 0; layer < 35; ++layer)
    json["layer_types"].push_back(layer % 5 == 4 ? "full_attention" : "sliding_attention");
  const ModelConfig config = parse_model_config(json, "a test");
  EXPECT_EQ(config.layer_input_width, 256) << "where it is silent";
  EXPECT_EQ(config.heads_of(14), (AttentionHeads{8, 1, 512}));
  EXPECT_EQ(config.heads_of(34),
            (AttentionHeads{.query = 8, .key_value = 1, .width = 512, .share_keys = true}));
  for (int64_t layer = 0; layer < 35; ++layer) {
    EXPECT_EQ(config.layer_of_keys(layer), layer < 15 ? layer : layer % 5 == 4 ? 14 : 13) << layer;
    EXPECT_EQ(config.gives_keys(layer), layer == 13 || layer == 14) << layer;
    EXPECT_EQ(config.intermediate_size_of(layer), layer < 15 ? 6144 : 12288) << layer;
  }
  const int64_t m = 1536, p = 256, mlps = (15 + 2 * 20) * 3 * m * 6144, gate = 2 * p * m,
                sliding = m * (2 * 2048 + 2 * 256) + 2 * 256, full = m * (2 * 4096 + 2 * 512) + 2 * 512,
                sliding_alone = m * 2 * 2048 + 256, full_alone = m * 2 * 4096 + 512, norms = 5 * m,
                table = 262144 * 35 * p, projection = 35 * p * m;
  const int64_t layers =
      mlps + 35 * (gate + norms + 1) + 12 * sliding + 3 * full + 16 * sliding_alone + 4 * full_alone;
  const ModelLayout layout = make_model_layout(config);
  EXPECT_EQ(layout.parameter_count(), layers + 262144 * m + m + table + projection + p);
  const int64_t vectors = 35 * (norms + 1) + 12 * 512 + 3 * 1024 + 16 * 256 + 4 * 512;
  EXPECT_EQ(layout.matmul_parameter_count(), layers - vectors + 262144 * m + projection)
      << "rows of the table are looked up";
  json["use_double_wide_mlp"] = false;
  EXPECT_EQ(parse_model_config(json, "a test").intermediate_size_of(34), 6144);
}

TEST(Gemma4Config, what_is_not_built_is_refused_with_where_it_trains) {
  const auto gemma4 = [](const std::string& keys) {
    return refusal(small("gemma4_text", R"("hidden_size_per_layer_input":0,)" + keys));
  };
  EXPECT_THAT(gemma4(R"("num_kv_shared_layers":4)"), HasSubstr("expected 0 to 3"));
  EXPECT_THAT(gemma4(R"("num_kv_shared_layers":null)"), HasSubstr("null says nothing here"));
  EXPECT_THAT(gemma4(R"("num_kv_shared_layers":1)"), HasSubstr("layer 3 has full attention, and no layer"));
  EXPECT_THAT(
      gemma4(
          R"("num_kv_shared_layers":2,"layer_types":["full_attention","full_attention","sliding_attention","full_attention"])"),
      HasSubstr("layer 2 slides, and no layer"));
  EXPECT_THAT(refusal(small("gemma4_text", R"("vocab_size":300,"vocab_size_per_layer_input":299)")),
              HasSubstr("vocab_size_per_layer_input"));
  EXPECT_THAT(gemma4(R"("use_bidirectional_attention":"all")"), HasSubstr("use_bidirectional_attention"));
  EXPECT_EQ(gemma4(R"("use_bidirectional_attention":"vision")"), "no error");
  EXPECT_THAT(gemma4(R"("final_logit_softcapping":0)"), HasSubstr("final_logit_softcapping"));
  EXPECT_THAT(gemma4(R"("attn_logit_softcapping":50)"), HasSubstr("attn_logit_softcapping"));
  EXPECT_THAT(gemma4(R"("attention_k_eq_v":true,"num_global_key_value_heads":3)"),
              HasSubstr("num_global_key_value_heads"));
  EXPECT_THAT(gemma4(R"("rope_theta":5000.0)"), AllOf(HasSubstr("rope_theta"), HasSubstr("rope_parameters")));
  EXPECT_THAT(gemma4(R"("rope_parameters":{"full_attention":{"rope_theta":1e6}})"),
              HasSubstr("sliding_attention"));
}

}  // namespace
}  // namespace trireme::gemma4_config_test
