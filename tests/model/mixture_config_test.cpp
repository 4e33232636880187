#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/model/model_layout.h"

#include "tests/model/config_text.h"

namespace trireme::mixture_config_test {
namespace {

using config_test::parse;
using config_test::refusal;
using config_test::small;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(MixtureConfig, what_mixtures_have_and_is_not_built_is_refused_with_what_to_do) {
  const auto mixture = [](const std::string& key, const std::string& more = "") {
    return refusal(small("qwen3_moe", R"("num_experts":4,"num_experts_per_tok":2,)" + key + more));
  };
  EXPECT_THAT(mixture(R"("output_router_logits":true)"),
              AllOf(HasSubstr("output_router_logits"), HasSubstr("set it to false")));
  EXPECT_THAT(mixture(R"("decoder_sparse_step":2)"), HasSubstr("decoder_sparse_step"));
  EXPECT_THAT(mixture(R"("mlp_only_layers":[0])"), HasSubstr("mlp_only_layers"));
  EXPECT_THAT(refusal(small("deepseek_v3")), HasSubstr("mixtral and those of Qwen are"));
  EXPECT_THAT(refusal(small("qwen2_moe", R"("qkv_bias":false)")), HasSubstr("qkv_bias"));
  EXPECT_THAT(refusal(small("qwen2_moe", R"("use_sliding_window":true)")), HasSubstr("use_sliding_window"));
  EXPECT_THAT(refusal(small("qwen2_moe", R"("num_local_experts":60)")), HasSubstr("num_experts alone"));
  EXPECT_EQ(refusal(small("qwen2", R"("qkv_bias":false)")), "no error") << "which transformers does not read";
  EXPECT_THAT(refusal(small("qwen3", R"("shared_expert_intermediate_size":64)")), HasSubstr("shared_expert"));
  EXPECT_THAT(refusal(small("qwen2_moe", R"("shared_expert_intermediate_size":0)")),
              HasSubstr("shared_expert"));
  EXPECT_THAT(refusal(small("qwen3_next", R"("mlp_only_layers":[1])")), HasSubstr("mlp_only_layers"));
  EXPECT_THAT(refusal(small("qwen3_5_moe_text", R"("norm_topk_prob":false)")), HasSubstr("sum to one"));
  EXPECT_THAT(refusal(small("mixtral", R"("norm_topk_prob":false)")), HasSubstr("norm_topk_prob"));
  EXPECT_THAT(mixture(R"("routed_scaling_factor":2.5)"), HasSubstr("routed_scaling_factor"));
  EXPECT_THAT(mixture(R"("shared_expert_intermediate_size":64)"), HasSubstr("shared_expert"));
  EXPECT_THAT(mixture(R"("num_local_experts":8)"), HasSubstr("num_local_experts is 8"));
  EXPECT_THAT(mixture(R"("moe_intermediate_size":0)"), HasSubstr("moe_intermediate_size"));
  EXPECT_THAT(refusal(small("qwen3_moe", R"("num_experts":4,"num_experts_per_tok":5)")),
              AllOf(HasSubstr("num_experts_per_tok"), HasSubstr("4 experts")));
  EXPECT_THAT(mixture(R"("num_local_experts":100000)"), HasSubstr("expected 1 to 65536")) << "of four layers";
  EXPECT_THAT(refusal(small("mixtral", R"("router_jitter_noise":0.1)")), HasSubstr("router_jitter_noise"));
  EXPECT_THAT(refusal(small("mixtral", R"("attention_bias":true)")), HasSubstr("attention_bias"));
  EXPECT_THAT(refusal(small("qwen2", R"("num_experts":4)")), HasSubstr("has no mixtures of experts"));
  EXPECT_EQ(refusal(small("qwen2", R"("num_experts":0)")), "no error");
  EXPECT_THAT(mixture(R"("use_qk_norm":false)"), AllOf(HasSubstr("use_qk_norm"), HasSubstr("always")));
  EXPECT_THAT(refusal(small("llama", R"("use_qk_norm":true)")),
              AllOf(HasSubstr("use_qk_norm"), HasSubstr("never")));
}

// Qwen3-Coder-30B-A3B's own file says by 0 and true what its class does anyway.
TEST(MixtureConfig, the_published_file_of_qwen3_coder_is_read) {
  const ModelConfig config = parse(
      R"({"architectures":["Qwen3MoeForCausalLM"],"attention_bias":false,"attention_dropout":0.0,)"
      R"("decoder_sparse_step":1,"eos_token_id":151645,"head_dim":128,"hidden_act":"silu","hidden_size":2048,)"
      R"("initializer_range":0.02,"intermediate_size":5472,"max_position_embeddings":262144,)"
      R"("max_window_layers":28,"mlp_only_layers":[],"model_type":"qwen3_moe","moe_intermediate_size":768,)"
      R"("norm_topk_prob":true,"num_attention_heads":32,"num_experts":128,"num_experts_per_tok":8,)"
      R"("num_hidden_layers":48,"num_key_value_heads":4,"output_router_logits":false,"qkv_bias":false,)"
      R"("rms_norm_eps":1e-06,"rope_scaling":null,"rope_theta":10000000,"router_aux_loss_coef":0.0,)"
      R"("shared_expert_intermediate_size":0,"sliding_window":null,"tie_word_embeddings":false,)"
      R"("torch_dtype":"bfloat16","transformers_version":"4.52.3","use_cache":true,"use_qk_norm":true,)"
      R"("use_sliding_window":false,"vocab_size":151936})");
  EXPECT_EQ(make_model_layout(config).parameter_count(), 30'532'122'624);
  EXPECT_EQ(config.shared_intermediate_size, 0);
}

// Qwen3-30B-A3B: 30.5 billion parameters, of which a token meets 3.3 with the embedding.
TEST(MixtureConfig, of_a_mixture_a_token_multiplies_the_experts_that_it_goes_to) {
  const ModelLayout layout = make_model_layout(parse(
      R"({"model_type":"qwen3_moe","hidden_size":2048,"moe_intermediate_size":768,"num_hidden_layers":48,)"
      R"("num_experts":128,"num_experts_per_tok":8,"num_attention_heads":32,"num_key_value_heads":4,)"
      R"("head_dim":128,"vocab_size":151936})"));
  EXPECT_EQ(layout.parameter_count(), 30'532'122'624);
  const int64_t attention = 2048 * (4096 + 2 * 512) + 4096 * 2048, experts = 8 * 3 * 768 * 2048,
                router = 128 * 2048;
  EXPECT_EQ(layout.matmul_parameter_count(), 48 * (attention + experts + router) + 151936 * 2048);
}

// Qwen3-Next-80B-A3B, Qwen3.5-35B-A3B and Qwen1.5-MoE-A2.7B: transformers' own sizes.
TEST(MixtureConfig, mixtures_of_qwen_may_have_an_expert_that_every_token_shares) {
  const int64_t m = 2048;
  const auto layer_of_experts = [m](int64_t experts, int64_t width, int64_t shared) {
    return experts * (3 * width * m + m) + 3 * shared * m + m + 2 * m;
  };
  const int64_t attention = m * (2 * 4096 + 2 * 512) + 4096 * m + 2 * 256,
                delta = m * (8192 + 2 * 32 + 4096) + 8192 * 4 + 2 * 32 + 128 + 4096 * m;

  const ModelConfig next = parse(R"({"model_type":"qwen3_next"})");
  EXPECT_EQ(next.delta_net, (DeltaNet{{16, 32, 128, 128}, 4, DeltaProjections::by_key_head}));
  EXPECT_TRUE(next.expert_weights_sum_to_one && next.norms_add_one && next.gated_attention);
  EXPECT_EQ(make_model_layout(next).parameter_count(),
            48 * layer_of_experts(512, 512, 512) + 36 * delta + 12 * attention + 2 * 151936 * m + m);
  EXPECT_FALSE(parse(R"({"model_type":"qwen3_next","norm_topk_prob":false})").expert_weights_sum_to_one);

  const ModelConfig qwen3_5 = parse(R"({"model_type":"qwen3_5_moe_text"})");
  EXPECT_EQ(qwen3_5.delta_net, (DeltaNet{{16, 32, 128, 128}, 4, DeltaProjections::by_kind}));
  EXPECT_TRUE(qwen3_5.expert_weights_sum_to_one);
  const ModelLayout layout = make_model_layout(qwen3_5);
  EXPECT_EQ(layout.parameter_count(),
            40 * layer_of_experts(256, 512, 512) + 30 * delta + 10 * attention + 2 * 248320 * m + m);
  // Of a token 8 experts and the shared one; vectors are no products.
  EXPECT_EQ(layout.matmul_parameter_count(), 40 * (9 * 3 * 512 * m + 256 * m + m) +
                                                 30 * (delta - 2 * 32 - 128) + 10 * (attention - 2 * 256) +
                                                 248320 * m);

  const ModelConfig qwen2 = parse(R"({"model_type":"qwen2_moe"})");
  EXPECT_TRUE(qwen2.qkv_bias && !qwen2.expert_weights_sum_to_one && !qwen2.delta_net);
  EXPECT_EQ(make_model_layout(qwen2).parameter_count(),
            24 * (layer_of_experts(60, 1408, 5632) + 4 * m * m + 3 * m) + 2 * 151936 * m + m);
}

// Gemma 4 26B-A4B: 25.2 billion parameters.
TEST(MixtureConfig, of_gemma_4_experts_lie_beside_an_mlp) {
  const ModelConfig config = parse(
      R"({"model_type":"gemma4_text","hidden_size":2816,"intermediate_size":2112,"num_hidden_layers":30,)"
      R"("num_attention_heads":16,"num_key_value_heads":8,"hidden_size_per_layer_input":0,"attention_k_eq_v":true,)"
      R"("num_global_key_value_heads":2,"enable_moe_block":true,"num_experts":128,"top_k_experts":8,)"
      R"("moe_intermediate_size":704})");
  EXPECT_TRUE(config.experts_beside_mlp && config.expert_weights_sum_to_one);
  EXPECT_EQ(config.intermediate_size, 704);
  EXPECT_EQ(config.shared_intermediate_size, 2112);
  const int64_t m = 2816, sliding = m * (2 * 4096 + 2 * 2048) + 2 * 256,
                full = m * (2 * 8192 + 1024) + 2 * 512, experts = 128 * 3 * 704 * m, mlp = 3 * 2112 * m,
                router = 128 * m + 128 + m, norms = 7 * m;
  const ModelLayout layout = make_model_layout(config);
  EXPECT_EQ(layout.parameter_count(),
            30 * (experts + mlp + router + norms + 1) + 25 * sliding + 5 * full + 262144 * m + m);
  EXPECT_EQ(layout.matmul_parameter_count(),
            30 * (8 * 3 * 704 * m + mlp + 128 * m) + 25 * (sliding - 512) + 5 * (full - 1024) + 262144 * m);
  const auto gemma4 = [](const std::string& keys) {
    return small("gemma4_text", R"("hidden_size_per_layer_input":0,)" + keys);
  };
  EXPECT_EQ(parse(gemma4(R"("num_experts":8)")).num_experts, 0) << "enable_moe_block is silent";
  EXPECT_THAT(refusal(gemma4(R"("enable_moe_block":true,"num_experts":8,"moe_intermediate_size":16)")),
              HasSubstr("top_k_experts"));
  EXPECT_THAT(refusal(gemma4(
                  R"("enable_moe_block":true,"num_experts":2,"top_k_experts":3,"moe_intermediate_size":16)")),
              AllOf(HasSubstr("top_k_experts"), HasSubstr("2 experts")));
}

}  // namespace
}  // namespace trireme::mixture_config_test
