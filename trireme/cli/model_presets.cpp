#include "trireme/cli/model_presets.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/joined.h"
#include "trireme/base/nearest_name.h"
#include "trireme/tokenizer/utf8.h"

namespace trireme {
namespace {

struct PresetRow {
  std::string_view name;
  std::string_view base;  // the preset that is changed; empty: none
  bool byte_level_tokenizer;
  std::string_view description;
  const char* changes;  // take the place of the base's keys
  void (*finish)(Json& config) = nullptr;
};

constexpr auto kPresetRows = std::to_array<PresetRow>({
    // 64 wide, two layers: trains in seconds on a laptop. 320 ids leave room for special tokens beside 256 bytes.
    {"tiny", "", true, "llama, 64 wide, 2 layers, byte-level tokenizer",
     R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu",
         "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2,
         "vocab_size": 320, "max_position_embeddings": 1048576, "rms_norm_eps": 1e-5,
         "initializer_range": 0.02, "rope_theta": 10000.0, "rope_scaling": null,
         "tie_word_embeddings": false, "bos_token_id": null, "eos_token_id": 256, "pad_token_id": null})"},
    {"tiny-mistral", "tiny", true, "the same with a sliding window of 256 tokens",
     R"({"model_type": "mistral", "architectures": ["MistralForCausalLM"], "head_dim": 16,
         "sliding_window": 256})"},
    {"tiny-ministral3", "tiny", true,
     "the same, stretched from 64 positions by YaRN, with queries scaled by their position",
     R"({"model_type": "ministral3", "architectures": ["Ministral3ForCausalLM"], "head_dim": 16,
         "rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 16384.0,
                             "original_max_position_embeddings": 64, "llama_4_scaling_beta": 0.1}})"},
    {"tiny-qwen2", "tiny", true, "the same with biases and tied embeddings",
     R"({"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "tie_word_embeddings": true})"},
    {"tiny-qwen3", "tiny", true, "the same with query and key norms and heads 32 wide",
     R"({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 32})"},
    {"tiny-mixtral", "tiny", true, "the same with 4 experts, of which a token has 2",
     R"({"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "head_dim": 16,
         "intermediate_size": 88, "num_local_experts": 4, "num_experts_per_tok": 2})"},
    {"tiny-qwen3-moe", "tiny", true, "a tiny-qwen3 with 8 experts, of which a token has 3",
     R"({"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "head_dim": 32,
         "intermediate_size": 56, "moe_intermediate_size": 56, "num_experts": 8, "num_experts_per_tok": 3,
         "norm_topk_prob": true})"},
    {"tiny-gemma2", "gemma2-2b", true,
     "a gemma 2 of the same width: every second layer slides over 256 tokens",
     R"({"hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "query_pre_attn_scalar": 16,
         "vocab_size": 320, "max_position_embeddings": 1048576, "sliding_window": 256,
         "bos_token_id": null, "eos_token_id": 256, "pad_token_id": null})"},
    {"tiny-gemma3", "gemma3-1b", true,
     "a gemma 3 of the same width: every second layer slides over 256 tokens",
     R"({"hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 4,
         "num_key_value_heads": 2, "head_dim": 16, "query_pre_attn_scalar": 16,
         "vocab_size": 320, "max_position_embeddings": 1048576, "sliding_window": 256,
         "sliding_window_pattern": 2, "initializer_range": 0.02, "rope_theta": 10000.0,
         "bos_token_id": null, "eos_token_id": 256, "pad_token_id": null})"},
    {"tiny-gemma4", "gemma4-31b", true,
     "a gemma 4 of the same width: one layer slides over 256 tokens, the other has heads twice as wide",
     R"({"hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "global_head_dim": 32,
         "num_global_key_value_heads": 1, "vocab_size": 320, "max_position_embeddings": 1048576,
         "sliding_window": 256, "layer_types": ["sliding_attention", "full_attention"],
         "bos_token_id": null, "eos_token_id": 256, "pad_token_id": null})"},
    {"tiny-gemma4-e2b", "gemma4-e2b", true,
     "a gemma 4 of four layers, two of which take keys of the others; each is told of its token",
     R"({"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "global_head_dim": 32,
         "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 16, "vocab_size": 320,
         "vocab_size_per_layer_input": 320, "max_position_embeddings": 1048576, "sliding_window": 256,
         "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
         "bos_token_id": null, "eos_token_id": 256, "pad_token_id": null})"},
    {"tiny-qwen3.5", "qwen3.5-9b", true,
     "a qwen 3.5 of the same width: one layer has a DeltaNet, the other gated attention",
     R"({"hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
         "full_attention_interval": 2, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
         "linear_key_head_dim": 16, "linear_value_head_dim": 16, "vocab_size": 320,
         "max_position_embeddings": 1048576, "tie_word_embeddings": true, "eos_token_id": 256})"},
    {"tiny-qwen3.5-moe", "qwen3.5-35b-a3b", true,
     "a tiny-qwen3.5 with 8 experts, of which a token has 3, beside one that every token has",
     R"({"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "head_dim": 16, "full_attention_interval": 2, "linear_num_key_heads": 2,
         "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
         "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 56,
         "shared_expert_intermediate_size": 56, "vocab_size": 320,
         "max_position_embeddings": 1048576, "tie_word_embeddings": true, "eos_token_id": 256})"},
    // The tokenizer's padding token is 257.
    {"bert-tiny", "", true, "an encoder of the same width, for masked-token training (--mask_token_id 258)",
     R"({"model_type": "bert", "architectures": ["BertForMaskedLM"], "hidden_act": "gelu",
         "hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
         "vocab_size": 320, "max_position_embeddings": 8192, "type_vocab_size": 2,
         "layer_norm_eps": 1e-12, "initializer_range": 0.02,
         "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
         "tie_word_embeddings": true, "pad_token_id": 257})"},
    {"small", "tiny", false, "llama, 512 wide, 8 layers, 8/4 heads, vocabulary 32,000",
     R"({"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 8,
         "num_attention_heads": 8, "num_key_value_heads": 4,
         "vocab_size": 32000, "bos_token_id": 1, "eos_token_id": 2})"},
    {"small-gemma2", "gemma2-2b", false, "a gemma 2 of small's width, windows of 4,096 in every second layer",
     R"({"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 8, "head_dim": 64,
         "query_pre_attn_scalar": 64, "vocab_size": 32000, "max_position_embeddings": 131072})"},
    {"small-qwen3-moe", "tiny", false,
     "a qwen3_moe of small's width: 32 experts 352 wide, of which a token has 4",
     R"({"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"],
         "hidden_size": 512, "intermediate_size": 352, "moe_intermediate_size": 352, "num_hidden_layers": 8,
         "num_experts": 32, "num_experts_per_tok": 4, "norm_topk_prob": true,
         "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64,
         "vocab_size": 32000, "bos_token_id": 1, "eos_token_id": 2})"},
    {"small-qwen3.5-moe", "qwen3.5-35b-a3b", false,
     "a qwen 3.5 of small's width: 16 experts 352 wide, of which a token has 4, and a shared one",
     R"({"hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 4,
         "head_dim": 64, "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 64,
         "linear_value_head_dim": 64, "num_experts": 16, "num_experts_per_tok": 4,
         "moe_intermediate_size": 352, "shared_expert_intermediate_size": 352, "vocab_size": 32000,
         "max_position_embeddings": 131072, "eos_token_id": 2})"},
    {"llama3-8b", "tiny", false, "the sizes of Llama 3.1 8B",
     R"({"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
         "num_attention_heads": 32, "num_key_value_heads": 8,
         "vocab_size": 128256, "max_position_embeddings": 131072, "rope_theta": 500000.0,
         "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                          "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
         "bos_token_id": 128000, "eos_token_id": 128001})"},
    {"mistral-7b", "tiny", false, "the sizes of Mistral 7B v0.1, window 4,096",
     R"({"model_type": "mistral", "architectures": ["MistralForCausalLM"],
         "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
         "num_attention_heads": 32, "num_key_value_heads": 8,
         "vocab_size": 32000, "max_position_embeddings": 32768, "sliding_window": 4096,
         "bos_token_id": 1, "eos_token_id": 2})"},
    {"mistral-small-24b", "tiny", false, "the sizes of the language model of Mistral Small 3.1 and 3.2",
     R"({"model_type": "mistral", "architectures": ["MistralForCausalLM"],
         "hidden_size": 5120, "intermediate_size": 32768, "num_hidden_layers": 40,
         "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
         "vocab_size": 131072, "max_position_embeddings": 131072, "rope_theta": 1000000000.0,
         "sliding_window": null, "bos_token_id": 1, "eos_token_id": 2})"},
    // Stretched from 16K before it was published, its queries scaled by their position.
    {"ministral3-8b", "tiny", false, "the sizes of the language model of Ministral 3 8B",
     R"({"model_type": "ministral3", "architectures": ["Ministral3ForCausalLM"],
         "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 34,
         "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
         "vocab_size": 131072, "max_position_embeddings": 262144, "sliding_window": null,
         "rope_theta": 1000000.0,
         "rope_parameters": {"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 16.0,
                             "original_max_position_embeddings": 16384, "beta_fast": 32.0, "beta_slow": 1.0,
                             "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1},
         "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 11})"},
    {"qwen2-7b", "tiny", false, "the sizes of Qwen2.5 7B, 28 query heads",
     R"({"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"],
         "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
         "num_attention_heads": 28, "num_key_value_heads": 4,
         "vocab_size": 152064, "max_position_embeddings": 131072, "rms_norm_eps": 1e-6,
         "rope_theta": 1000000.0, "use_sliding_window": false, "bos_token_id": 151643,
         "eos_token_id": 151643})"},
    {"qwen3-4b", "tiny", false, "the sizes of Qwen3 4B, tied embeddings",
     R"({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "attention_bias": false,
         "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36,
         "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
         "vocab_size": 151936, "max_position_embeddings": 40960, "rms_norm_eps": 1e-6,
         "rope_theta": 1000000.0, "tie_word_embeddings": true, "use_sliding_window": false,
         "bos_token_id": 151643, "eos_token_id": 151645})"},
    {"qwen3-30b-a3b", "tiny", false, "the sizes of Qwen3-30B-A3B of July 2025 (Instruct, Coder): 128 experts",
     R"({"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false,
         "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
         "num_hidden_layers": 48, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": true,
         "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
         "vocab_size": 151936, "max_position_embeddings": 262144, "rms_norm_eps": 1e-6,
         "rope_theta": 10000000.0, "use_sliding_window": false, "bos_token_id": 151643,
         "eos_token_id": 151645})"},
    // Three layers of four have a DeltaNet in place of attention.
    {"qwen3.5-9b", "", false, "the sizes of Qwen3.5 9B's text model",
     R"({"model_type": "qwen3_5_text", "architectures": ["Qwen3_5ForCausalLM"], "hidden_act": "silu",
         "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 32,
         "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 256, "full_attention_interval": 4,
         "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
         "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
         "vocab_size": 248320, "max_position_embeddings": 262144, "rms_norm_eps": 1e-6,
         "rope_parameters": {"rope_type": "default", "rope_theta": 10000000.0,
                             "partial_rotary_factor": 0.25},
         "tie_word_embeddings": false, "eos_token_id": 248044})"},
    {"qwen3.5-35b-a3b", "qwen3.5-9b", false,
     "the sizes of Qwen3.5-35B-A3B's text model: 256 experts and a shared one",
     R"({"model_type": "qwen3_5_moe_text", "architectures": ["Qwen3_5MoeForCausalLM"],
         "hidden_size": 2048, "num_hidden_layers": 40, "num_key_value_heads": 2,
         "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
         "shared_expert_intermediate_size": 512})",
     [](Json& config) { config.erase("intermediate_size"); }},
    {"qwen3-next-80b-a3b", "qwen3.5-35b-a3b", false,
     "the sizes of Qwen3-Next-80B-A3B: 512 experts and a shared one",
     R"({"model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"], "num_hidden_layers": 48,
         "num_experts": 512, "num_experts_per_tok": 10, "norm_topk_prob": true, "vocab_size": 151936,
         "eos_token_id": 151645})"},
    {"mixtral-8x7b", "tiny", false, "the sizes of Mixtral 8x7B",
     R"({"model_type": "mixtral", "architectures": ["MixtralForCausalLM"],
         "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
         "num_local_experts": 8, "num_experts_per_tok": 2,
         "num_attention_heads": 32, "num_key_value_heads": 8,
         "vocab_size": 32000, "max_position_embeddings": 32768, "rope_theta": 1000000.0,
         "bos_token_id": 1, "eos_token_id": 2})"},
    // Every second layer slides.
    {"gemma2-2b", "", false, "the sizes of Gemma 2 2B, windows of 4096 in every second layer",
     R"({"model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"],
         "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304, "intermediate_size": 9216,
         "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
         "query_pre_attn_scalar": 256, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
         "vocab_size": 256000, "max_position_embeddings": 8192, "sliding_window": 4096,
         "rope_theta": 10000.0, "rms_norm_eps": 1e-6, "tie_word_embeddings": true, "bos_token_id": 2,
         "eos_token_id": 1, "pad_token_id": 0})"},
    {"gemma2-9b", "gemma2-2b", false, "the sizes of Gemma 2 9B",
     R"({"hidden_size": 3584, "intermediate_size": 14336, "num_hidden_layers": 42,
         "num_attention_heads": 16, "num_key_value_heads": 8})"},
    {"gemma2-27b", "gemma2-2b", false, "the sizes of Gemma 2 27B",
     R"({"hidden_size": 4608, "intermediate_size": 36864, "num_hidden_layers": 46, "head_dim": 128,
         "query_pre_attn_scalar": 144, "num_attention_heads": 32, "num_key_value_heads": 16})"},
    {"gemma3-270m", "gemma3-1b", false, "the sizes of Gemma 3 270M, windows of 512",
     R"({"hidden_size": 640, "intermediate_size": 2048, "num_hidden_layers": 18})"},
    // Layers slide but for each sixth.
    {"gemma3-1b", "", false, "the sizes of Gemma 3 1B, windows of 512",
     R"({"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"],
         "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152, "intermediate_size": 6912,
         "num_hidden_layers": 26, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256,
         "query_pre_attn_scalar": 256, "vocab_size": 262144, "max_position_embeddings": 32768,
         "sliding_window": 512, "sliding_window_pattern": 6,
         "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "rms_norm_eps": 1e-6,
         "tie_word_embeddings": true, "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0})"},
    // Of those that read images too the text models are stretched to 128K.
    {"gemma3-4b", "gemma3-1b", false, "the sizes of Gemma 3 4B's text model",
     R"({"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
         "num_attention_heads": 8, "num_key_value_heads": 4,
         "vocab_size": 262208, "max_position_embeddings": 131072, "sliding_window": 1024,
         "rope_scaling": {"rope_type": "linear", "factor": 8.0}})"},
    {"gemma3-12b", "gemma3-4b", false, "the sizes of Gemma 3 12B's text model",
     R"({"hidden_size": 3840, "intermediate_size": 15360, "num_hidden_layers": 48,
         "num_attention_heads": 16, "num_key_value_heads": 8})"},
    {"gemma3-27b", "gemma3-4b", false, "the sizes of Gemma 3 27B's text model",
     R"({"hidden_size": 5376, "intermediate_size": 21504, "num_hidden_layers": 62, "head_dim": 128,
         "query_pre_attn_scalar": 168, "num_attention_heads": 32, "num_key_value_heads": 16})"},
    // The last layers take keys of earlier ones, and each is told of its token by a table of its own.
    {"gemma4-e2b", "gemma4-31b", false,
     "the sizes of Gemma 4 E2B's text model: 20 of 35 layers take keys of others",
     R"({"hidden_size": 1536, "intermediate_size": 6144, "num_hidden_layers": 35,
         "num_attention_heads": 8, "num_key_value_heads": 1, "num_global_key_value_heads": null,
         "attention_k_eq_v": false, "num_kv_shared_layers": 20, "use_double_wide_mlp": true,
         "hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 262144,
         "max_position_embeddings": 131072, "sliding_window": 512})",
     [](Json& config) {
       for (int layer = 0; layer < 35; ++layer)
         config["layer_types"].push_back(layer % 5 == 4 ? "full_attention" : "sliding_attention");
     }},
    {"gemma4-e4b", "gemma4-e2b", false,
     "the sizes of Gemma 4 E4B's text model: 18 of 42 layers take keys of others",
     R"({"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 42,
         "num_key_value_heads": 2, "num_kv_shared_layers": 18, "use_double_wide_mlp": false,
         "layer_types": null})"},
    {"gemma4-26b-a4b", "gemma4-31b", false,
     "the sizes of Gemma 4 26B-A4B's text model: 128 experts beside an MLP",
     R"({"hidden_size": 2816, "intermediate_size": 2112, "num_hidden_layers": 30,
         "num_attention_heads": 16, "num_key_value_heads": 8, "num_global_key_value_heads": 2,
         "enable_moe_block": true, "num_experts": 128, "top_k_experts": 8,
         "moe_intermediate_size": 704})"},
    // Layers with full attention have wider heads, whose keys are their values too.
    {"gemma4-31b", "", false, "the sizes of Gemma 4 31B's text model",
     R"({"model_type": "gemma4_text", "architectures": ["Gemma4ForCausalLM"],
         "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 5376, "intermediate_size": 21504,
         "num_hidden_layers": 60, "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 256,
         "global_head_dim": 512, "num_global_key_value_heads": 4, "attention_k_eq_v": true,
         "hidden_size_per_layer_input": 0, "final_logit_softcapping": 30.0,
         "vocab_size": 262144, "max_position_embeddings": 262144, "sliding_window": 1024,
         "rms_norm_eps": 1e-6, "rope_parameters": {
           "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
           "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}},
         "tie_word_embeddings": true, "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0})"},
});

Json config_of_preset(std::string_view name) {
  const auto row = std::ranges::find(kPresetRows, name, &PresetRow::name);
  Json config = row->base.empty() ? Json::object() : config_of_preset(row->base);
  config.update(parse_json(row->changes, cat("the preset ", name)));
  if (row->finish != nullptr) row->finish(config);
  return config;
}

}  // namespace

const std::vector<ModelPreset>& model_presets() {
  static const std::vector<ModelPreset> presets = [] {
    std::vector<ModelPreset> all;
    all.reserve(kPresetRows.size());
    for (const PresetRow& row : kPresetRows)
      all.push_back({std::string(row.name), std::string(row.description), config_of_preset(row.name),
                     row.byte_level_tokenizer});
    return all;
  }();
  return presets;
}

const ModelPreset& find_model_preset(const std::string& name, const char* flag, const char* expected) {
  std::vector<std::string> names;
  for (const ModelPreset& preset : model_presets()) {
    if (preset.name == name) return preset;
    names.push_back(preset.name);
  }
  throw ConfigError(cat(flag, " is '", quotation(name), "'; expected ", expected, joined(names),
                        did_you_mean(name, names)));
}

void apply_config_override(Json& config, const std::string& assignment) {
  const size_t equals = assignment.find('=');
  if (equals == std::string::npos || equals == 0)
    throw ConfigError(
        cat("--set is '", quotation(assignment), "'; expected key=value, such as num_hidden_layers=4"));
  const std::string path = assignment.substr(0, equals);
  const std::string text = assignment.substr(equals + 1);
  if (!is_valid_utf8(assignment)) throw ConfigError(cat("--set ", quotation(assignment), ": is not UTF-8"));
  Json value;
  try {
    value = parse_json(text, "--set");
  } catch (const DataError&) {  // a bare word
    value = text;
  }
  Json* field = &config;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t dot = std::min(path.find('.', begin), path.size());
    if (field->is_null()) *field = Json::object();
    if (!field->is_object())
      throw ConfigError(cat("--set ", quotation(assignment), ": '",
                            quotation(path.substr(0, begin == 0 ? 0 : begin - 1)),
                            "' is not an object in this config.json"));
    field = &(*field)[path.substr(begin, dot - begin)];
    begin = dot + 1;
  }
  *field = std::move(value);
}

void refuse_unread_override(const std::string& assignment, const std::set<std::string>& read) {
  const std::string key = assignment.substr(0, assignment.find_first_of(".="));
  if (!read.contains(key))
    throw ConfigError(cat("--set ", quotation(assignment), ": config.json has no key '", quotation(key),
                          "' that this model reads", did_you_mean(key, {read.begin(), read.end()})));
}

}  // namespace trireme
