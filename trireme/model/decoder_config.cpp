#include "trireme/model/decoder_config.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "trireme/base/error.h"
#include "trireme/model/expert_config.h"
#include "trireme/model/gemma4_config.h"
#include "trireme/model/rope_config.h"

namespace trireme {
namespace {

using AttentionBias = DecoderKind::AttentionBias;
using Gemma = DecoderKind::Gemma;
using Windows = DecoderKind::Windows;

constexpr const char* kLogitCap = "final_logit_softcapping";

void check_activation(const ConfigKeys& keys, const DecoderKind& kind) {
  const char* const kTanh = "gelu_pytorch_tanh";
  if (kind.gemma == Gemma::none) {
    if (const std::string act = keys.text("hidden_act", "silu"); act != "silu" && act != "swish")
      keys.refuse("hidden_act", "only silu is supported");
    return;
  }
  // Gemma's first files say gelu and mean the form with tanh, as transformers takes it.
  const std::string act = keys.text("hidden_act", kTanh);
  if (kind.gemma == Gemma::first && act != kTanh && act != "gelu")
    keys.refuse("hidden_act", "only gelu_pytorch_tanh is supported");
  if (keys.text("hidden_activation", kTanh) != kTanh)
    keys.refuse("hidden_activation", "only gelu_pytorch_tanh is supported");
}

// Keys that change what the model computes and that Trireme does not have.
void refuse_unbuilt(const ConfigKeys& keys, const DecoderKind& kind) {
  if (kind.experts == nullptr)
    keys.refuse_unless_none(
        {"num_experts", "num_local_experts", "n_routed_experts", "moe_intermediate_size", kSharedWidthKey},
        "this family has no mixtures of experts; mixtral, qwen2_moe, qwen3_moe, qwen3_next and qwen3_5_moe "
        "have");
  keys.refuse_unless_absent({"no_rope_layers", "mrope_section", "vision_config", "audio_config"},
                            "models of this kind are not supported");
  const char* const kOtherArithmetic = "it changes the model's arithmetic and is not supported";
  keys.refuse_unless_absent(
      {"logit_scale", "embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling",
       "scale_emb", "scale_depth", "attention_sinks", "clip_qkv"},
      kOtherArithmetic);
  const std::string kNotInThisFamily = cat(kOtherArithmetic, " in this family");
  if (kind.gemma != Gemma::second) keys.refuse_unless_absent({"attn_logit_softcapping"}, kNotInThisFamily);
  if (kind.gemma != Gemma::second && kind.gemma != Gemma::fourth)
    keys.refuse_unless_absent({kLogitCap}, kNotInThisFamily);
  if (kind.gemma != Gemma::fourth) keys.refuse_unless_absent({"per_layer_config"}, kNotInThisFamily);
  keys.refuse_unless_absent({"mtp_layer_types", "num_nextn_predict_layers"},
                            "multi-token prediction is not supported");
  if (kind.gemma != Gemma::second && kind.gemma != Gemma::third)
    keys.refuse_unless_absent({"query_pre_attn_scalar"}, kOtherArithmetic);
  check_activation(keys, kind);
  if (!kind.delta_nets && keys.number(kTurningShare, 1) != 1)
    keys.refuse(kTurningShare, "rotating a part of each head is not supported");
  const char* const kCausalDecoders = "only causal decoders as transformers' own classes are supported";
  for (const char* key : {"is_encoder_decoder", "add_cross_attention"})
    if (keys.boolean(key, false)) keys.refuse(key, kCausalDecoders);
  if (keys.boolean("use_qk_norm", kind.qk_norm) != kind.qk_norm)
    keys.refuse("use_qk_norm", cat("queries and keys of this family are ", kind.qk_norm ? "always" : "never",
                                   " normed in transformers"));
  // Gemma 4's "vision" is of images alone.
  if (kind.gemma == Gemma::fourth ? keys.text("use_bidirectional_attention", "vision") != "vision"
                                  : keys.boolean("use_bidirectional_attention", false))
    keys.refuse("use_bidirectional_attention", kCausalDecoders);
  // Where it is null, transformers' masks look at both sides too.
  if (keys.is_null("is_causal") || !keys.boolean("is_causal", true))
    keys.refuse("is_causal", "only causal attention is supported");
  if (!kind.mlp_bias && keys.boolean("mlp_bias", false))
    keys.refuse("mlp_bias", "this family's MLP has no biases in transformers");
  if (kind.attention_bias == AttentionBias::none && keys.boolean("attention_bias", false))
    keys.refuse("attention_bias", "this family's attention has no biases in transformers");
  if (kind.attention_bias == AttentionBias::qkv && !keys.boolean("attention_bias", true))
    keys.refuse("attention_bias", "this family's q, k and v projections always have biases in transformers");
  if (kind.attention_bias == AttentionBias::qkv && kind.experts != nullptr && !keys.boolean("qkv_bias", true))
    keys.refuse("qkv_bias", "a mixture without these biases is not built");
  if (keys.has("architectures")) {
    const std::string first = keys.first_text("architectures");
    if (!first.ends_with("ForCausalLM") && !first.ends_with("Model"))
      keys.refuse("architectures", "expected a causal language model such as [\"LlamaForCausalLM\"]");
  }
}

const Json& types_of_layers(const ConfigKeys& keys, int64_t layers) {
  const Json& types = keys.json()["layer_types"];
  if (!types.is_array() || static_cast<int64_t>(types.size()) != layers)
    keys.refuse("layer_types", cat("expected a list of num_hidden_layers = ", layers, " names"));
  return types;
}

// One window a layer, 0 for full attention, as transformers 5 chooses them.
std::vector<int64_t> layer_windows(const ConfigKeys& keys, const DecoderKind& kind, int64_t layers) {
  const bool chosen = kind.windows == Windows::chosen_layers, patterned = kind.windows == Windows::by_pattern;
  std::optional<int64_t> window;
  const bool by_use = chosen || kind.windows == Windows::all_layers_if_used;
  const bool listed = kind.windows == Windows::by_layer_types;
  if (patterned || listed || kind.windows == Windows::all_layers ||
      (by_use && keys.boolean("use_sliding_window", false)))
    window = keys.integer_or_null("sliding_window", kind.silent_window);
  if (kind.windows == Windows::none && keys.boolean("use_sliding_window", false))
    keys.refuse("use_sliding_window", cat("sliding windows of a ", kind.model_type, " are not built"));
  if (window && *window < 1)
    keys.refuse("sliding_window",
                cat("expected at least 1 token", patterned ? "" : ", or null for full attention"));
  if (patterned && !window)
    keys.refuse("sliding_window",
                "this family needs a width, which transformers asks for even where no layer slides");

  std::vector<int64_t> windows(static_cast<size_t>(layers), 0);
  const int64_t pattern = !patterned                    ? 1
                          : kind.gemma == Gemma::second ? 2
                          : kind.gemma == Gemma::fourth ? 6
                                                        : keys.size("sliding_window_pattern", 6);
  const int64_t first_sliding = chosen ? keys.integer("max_window_layers", 28) : 0;
  for (int64_t layer = 0; layer < layers; ++layer)
    if (window && layer >= first_sliding && !(patterned && (layer + 1) % pattern == 0))
      windows[static_cast<size_t>(layer)] = *window;
  if (!keys.has("layer_types")) return windows;

  const Json& types = types_of_layers(keys, layers);
  for (size_t layer = 0; layer < types.size(); ++layer) {
    const std::string type =
        types[layer].is_string() ? quotation(types[layer].get<std::string>()) : quotation(types[layer]);
    const bool sliding = type == kSlidingAttention;
    if (!sliding && type != kFullAttention && type != "attention")
      keys.refuse("layer_types", cat("layer ", layer, " is ", type,
                                     "; only full_attention and sliding_attention are supported"));
    if (sliding && !window)
      keys.refuse("layer_types", cat("layer ", layer, " slides, but no window is in force: ",
                                     chosen ? "set use_sliding_window true and sliding_window to its width"
                                            : "this model has no sliding_window"));
    // Mistral and Llama classes do not read layer_types: what it says must be what they do.
    if (!chosen && !patterned && !listed && sliding != (windows[layer] != 0))
      keys.refuse("layer_types",
                  cat("layer ", layer, " is ", type, ", but transformers' ", keys.text("model_type", ""),
                      " ignores this key and would ", windows[layer] != 0 ? "slide" : "not slide"));
    windows[layer] = sliding ? *window : 0;
  }
  return windows;
}

int64_t head_width(const ConfigKeys& keys, const ModelConfig& config, const DecoderKind& kind) {
  if (kind.names_head_dim && !keys.has("head_dim"))
    keys.refuse("head_dim", cat("transformers' ", kind.model_type, " needs it"));
  if (kind.heads_divide_the_width || (kind.head_dim == 0 && !keys.has("head_dim")))
    keys.refuse_unless_multiple("hidden_size", config.hidden_size, "num_attention_heads",
                                config.num_attention_heads);
  const int64_t by_division = config.hidden_size / config.num_attention_heads;
  const int64_t width = keys.integer_or_null("head_dim", kind.head_dim != 0 ? kind.head_dim : by_division)
                            .value_or(by_division);
  if (width < 2 || width % 2 != 0 || width > kWidestHead)
    throw ConfigError(cat(keys.origin(), ": head_dim is ", width,
                          "; rotary embeddings need an even width, 2 to ", kWidestHead));
  return width;
}

void set_gemma(ModelConfig& config) {
  config.gate = GluGate::gelu_tanh;
  config.embedding_scale = std::sqrt(static_cast<double>(config.hidden_size));
}

// Of Gemma 2 and 3.
void read_post_norms(const ConfigKeys& keys, ModelConfig& config) {
  config.post_norms = true;
  config.query_pre_attn_scalar = keys.number("query_pre_attn_scalar", 256);
  if (!(*config.query_pre_attn_scalar > 0)) keys.refuse("query_pre_attn_scalar", "expected more than 0");
}

// null: none. Of more than kMostCap nothing is capped, and 16 bits lose digits.
constexpr double kMostCap = 1e4;
double cap_of(const ConfigKeys& keys, const char* key, double where_silent) {
  if (keys.is_null(key)) return 0;
  const double cap = keys.number(key, where_silent);
  if (!(cap >= 0 && cap <= kMostCap) || (cap == 0 && keys.has(key)))
    keys.refuse(key, "expected more than 0, at most 10,000, or null");
  return cap;
}

constexpr double kDeltaNetsTurningShare = 0.25;  // where the file is silent

// Which layers have a DeltaNet: as layer_types says, or all but each full_attention_interval-th.
std::vector<bool> delta_layers(const ConfigKeys& keys, int64_t layers) {
  const int64_t interval = keys.size("full_attention_interval", 4);
  std::vector<bool> delta(static_cast<size_t>(layers));
  for (int64_t layer = 0; layer < layers; ++layer)
    delta[static_cast<size_t>(layer)] = (layer + 1) % interval != 0;
  if (!keys.has("layer_types")) return delta;
  const Json& types = types_of_layers(keys, layers);
  for (size_t layer = 0; layer < types.size(); ++layer) {
    if (types[layer] != kLinearAttention && types[layer] != kFullAttention)
      keys.refuse("layer_types", cat("layer ", layer, " is ", quotation(types[layer]), "; this family has ",
                                     kLinearAttention, " and ", kFullAttention));
    delta[layer] = types[layer] == kLinearAttention;
  }
  return delta;
}

void read_delta_nets(const ConfigKeys& keys, DeltaProjections projections, ModelConfig& config) {
  DeltaNet net;
  net.projections = projections;
  net.heads.key = keys.size("linear_num_key_heads", 16);
  net.heads.value = keys.size("linear_num_value_heads", 32);
  net.heads.key_width = keys.size("linear_key_head_dim", 128, kWidestHead);
  net.heads.value_width = keys.size("linear_value_head_dim", 128, kWidestHead);
  net.taps = keys.size("linear_conv_kernel_dim", 4, 64);
  if (net.heads.value % net.heads.key != 0)
    keys.refuse("linear_num_value_heads", cat("it is not a multiple of ", net.heads.key, " key heads"));
  config.delta_layers = delta_layers(keys, config.num_hidden_layers);
  if (std::ranges::count(config.delta_layers, true) > 0)
    config.delta_net = net;
  else
    config.delta_layers.clear();
  config.layer_window.assign(static_cast<size_t>(config.num_hidden_layers), 0);
  config.gated_attention = true;
}

}  // namespace

ModelConfig parse_decoder_config(const ConfigKeys& keys, const DecoderKind& kind) {
  ModelConfig config;
  refuse_unbuilt(keys, kind);
  for (const char* key :
       {"attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", "dropout"})
    if (const double rate = keys.number(key, 0); rate != 0) config.dropout[key] = rate;

  config.vocab_size = keys.size("vocab_size", kind.vocab_size);
  config.hidden_size = keys.size("hidden_size", kind.hidden_size);
  config.num_hidden_layers = keys.size("num_hidden_layers", kind.num_hidden_layers, 100'000);
  if (kind.experts != nullptr && (kind.gemma != Gemma::fourth || keys.boolean("enable_moe_block", false)))
    read_experts(keys, kind, config);
  else
    config.intermediate_size = keys.size("intermediate_size", kind.intermediate_size);
  config.num_attention_heads = keys.size("num_attention_heads", kind.num_attention_heads);
  // null: as many as query heads.
  const bool groups = kind.key_value_heads != 0 && !keys.contains("num_key_value_heads");
  config.num_key_value_heads =
      keys.size("num_key_value_heads", groups ? kind.key_value_heads : config.num_attention_heads);
  config.max_position_embeddings = keys.size("max_position_embeddings", kind.max_position_embeddings);
  config.norm_eps = keys.number("rms_norm_eps", kind.norm_eps);
  config.initializer_range = keys.number("initializer_range", 0.02);
  keys.refuse_unless_multiple("num_attention_heads", config.num_attention_heads, "num_key_value_heads",
                              config.num_key_value_heads);
  config.head_dim = head_width(keys, config, kind);

  config.tie_word_embeddings = keys.boolean("tie_word_embeddings", kind.tie_word_embeddings);
  const bool qkv_bias_alone = kind.attention_bias == AttentionBias::qkv;
  config.output_bias = !qkv_bias_alone && keys.boolean("attention_bias", false);
  config.qkv_bias = qkv_bias_alone || config.output_bias;
  config.mlp_bias = keys.boolean("mlp_bias", false);
  config.qk_norm = kind.qk_norm;
  if (kind.delta_nets)
    read_delta_nets(keys, *kind.delta_nets, config);
  else
    config.layer_window = layer_windows(keys, kind, config.num_hidden_layers);
  config.norms_add_one = kind.norms_add_one;
  if (kind.gemma != Gemma::none) set_gemma(config);
  if (kind.gemma == Gemma::second || kind.gemma == Gemma::third) read_post_norms(keys, config);
  if (kind.gemma == Gemma::second) config.score_cap = cap_of(keys, "attn_logit_softcapping", 50);
  if (kind.gemma == Gemma::second || kind.gemma == Gemma::fourth)
    config.logit_cap = cap_of(keys, kLogitCap, kind.gemma == Gemma::second ? 30 : 0);
  if (kind.gemma == Gemma::third)
    read_layer_ropes(keys, /*each_says_all=*/false, config);
  else if (kind.gemma == Gemma::fourth)
    read_gemma4(keys, config);
  else
    config.rope = parse_rope_config(keys, config,
                                    {kind.rope_theta, kind.scales_queries,
                                     kind.delta_nets ? std::optional(kDeltaNetsTurningShare) : std::nullopt});

  config.bos_token_id = keys.first_integer("bos_token_id", kind.bos_token_id);
  config.eos_token_id = keys.first_integer("eos_token_id", kind.eos_token_id);
  config.pad_token_id = keys.first_integer("pad_token_id", kind.pad_token_id);
  return config;
}

}  // namespace trireme
