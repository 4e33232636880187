// The config.json of causal decoders as transformers' own classes read it: what all of Llama's kind share,
// and what differs from kind to kind as data.
#pragma once

#include "trireme/model/config_keys.h"
#include "trireme/model/model_config.h"

namespace trireme {

inline constexpr const char* kSharedWidthKey = "shared_expert_intermediate_size";
inline constexpr int64_t kWidestHead = 65536;

// Of a mixture of experts.
struct ExpertKind {
  // What norm_topk_prob says of the weights of a token's experts, and what its silence does.
  enum class SumToOne { always, unless_denied, if_asked };

  int64_t experts, experts_per_token;
  bool counts_local = false;  // num_local_experts is another name of num_experts
  const char* per_token_key = "num_experts_per_tok";
  const char* width_key;     // of an expert's width
  int64_t shared_width = 0;  // of an expert that every token has beside its own; 0: there is none
  const char* shared_width_key = kSharedWidthKey;
  SumToOne sum_to_one;
  // PEFT means its matrices by gate_proj, up_proj and down_proj; else those of the other experts.
  bool shared_has_lora = false;
  // Names of parameters behind the layer's; an expert's number stands between the second and its matrices. Null:
  // files join them.
  const char *router, *expert = nullptr, *gate = nullptr, *up = nullptr, *down = nullptr;
  // Of all experts' matrices where a file joins them, [E, 2 I, M] and [E, M, I]; null: it is not read.
  const char *joined_gate_up = nullptr, *joined_down = nullptr;
  const char* shared = "mlp.shared_expert.";
};

struct DecoderKind {
  enum class AttentionBias { by_key, none, qkv };
  // Which layers slide: none; all, where sliding_window is set; all, where use_sliding_window says so as
  // well; those of use_sliding_window and max_window_layers, or as layer_types says; as layer_types says, or
  // all but each n-th; as layer_types says, or all.
  enum class Windows { none, all_layers, all_layers_if_used, chosen_layers, by_pattern, by_layer_types };

  // All: GeGLU, a scaled embedding. From the second on norms after each part; of the second and third
  // query_pre_attn_scalar. The second caps scores and logits, the fourth logits. Of the third and fourth, layers
  // that slide have another rope; of the fourth the others have other heads, and values are normed.
  enum class Gemma { none, first, second, third, fourth };

  const char* model_type;
  // What transformers assumes where the file is silent.
  int64_t vocab_size, intermediate_size;
  int64_t hidden_size = 4096, num_hidden_layers = 32, num_attention_heads = 32;
  int64_t key_value_heads = 0;  // 0: as many as query heads
  int64_t max_position_embeddings;
  int64_t head_dim = 0;  // 0: hidden_size / num_attention_heads
  double norm_eps = 1e-6, rope_theta = 10000;
  bool tie_word_embeddings = false;
  std::optional<int64_t> bos_token_id = {}, eos_token_id = {}, pad_token_id = {};

  bool names_head_dim = false;  // the file must: transformers' class has no other width
  // hidden_size must be a multiple of num_attention_heads even beside a head_dim.
  bool heads_divide_the_width = false;
  AttentionBias attention_bias = AttentionBias::by_key;
  bool mlp_bias = false;  // by its key; else there is none
  bool qk_norm = false;
  const ExpertKind* experts = nullptr;  // of a mixture in every layer; none: one MLP
  Windows windows = Windows::none;
  std::optional<int64_t> silent_window = 4096;  // where the file does not name it
  bool norms_add_one = false;
  bool scales_queries = false;  // RopeConfig::query_scaling (Ministral 3)
  Gemma gemma = Gemma::none;
  // Gated DeltaNets in place of attention but for each n-th layer, gated attention, a part of each head
  // rotated.
  std::optional<DeltaProjections> delta_nets = {};
};

ModelConfig parse_decoder_config(const ConfigKeys& keys, const DecoderKind& kind);

}  // namespace trireme
