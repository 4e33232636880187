#include "trireme/model/model_config.h"

#include <array>
#include <cmath>
#include <initializer_list>

#include "trireme/base/error.h"
#include "trireme/model/bert_config.h"
#include "trireme/model/config_keys.h"
#include "trireme/model/rope_config.h"

namespace trireme {
namespace {

constexpr int64_t largest_size = int64_t{1} << 31;

// What transformers assumes where the file is silent.
struct FamilyDefaults {
  ModelFamily family;
  const char* model_type;
  int64_t vocab_size, intermediate_size, key_value_heads;  // key_value_heads 0: as many as query heads
  int64_t max_position_embeddings;
  int64_t head_dim;  // 0: hidden_size / num_attention_heads
  bool token_ids;    // bos 1 and eos 2, else none
};
constexpr std::array<FamilyDefaults, 4> families = {{
    {ModelFamily::llama, "llama", 32000, 11008, 0, 2048, 0, true},
    {ModelFamily::mistral, "mistral", 32000, 14336, 8, 131072, 0, true},
    {ModelFamily::qwen2, "qwen2", 151936, 22016, 32, 32768, 0, false},
    {ModelFamily::qwen3, "qwen3", 151936, 22016, 32, 32768, 128, false},
}};

const FamilyDefaults& family_of(const ConfigKeys& keys) {
  const std::string type = keys.text("model_type", "");
  for (const FamilyDefaults& defaults : families)
    if (type == defaults.model_type) return defaults;
  throw ConfigError(cat(keys.origin(), ": model_type is ",
                        type.empty() ? "missing" : "\"" + quotation(type) + "\"",
                        "; Trireme trains llama, mistral, qwen2, qwen3 and bert"));
}

// Keys that change what the model computes and that Trireme does not have.
void refuse_unbuilt(const ConfigKeys& keys, ModelFamily family) {
  keys.refuse_unless_absent({"quantization_config", "compression_config"},
                            "quantized weights cannot be trained; use the unquantized model");
  keys.refuse_unless_absent({"num_experts", "num_local_experts", "n_routed_experts", "moe_intermediate_size"},
                            "mixtures of experts are not supported");
  keys.refuse_unless_absent(
      {"per_layer_config", "no_rope_layers", "mrope_section", "vision_config", "audio_config"},
      "models of this kind are not supported");
  keys.refuse_unless_absent(
      {"attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar", "logit_scale",
       "embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling", "scale_emb",
       "scale_depth", "attention_sinks", "clip_qkv"},
      "it changes the model's arithmetic and is not supported");
  keys.refuse_unless_absent({"mtp_layer_types", "num_nextn_predict_layers"},
                            "multi-token prediction is not supported");
  if (const std::string act = keys.text("hidden_act", "silu"); act != "silu" && act != "swish")
    keys.refuse("hidden_act", "only silu is supported");
  if (keys.integer_or_null("pretraining_tp", 1).value_or(1) > 1)
    keys.refuse("pretraining_tp", "slicing the matmuls as in pretraining is not supported; set it to 1");
  if (keys.number("partial_rotary_factor", 1) != 1)
    keys.refuse("partial_rotary_factor", "rotating a part of each head is not supported");
  for (const char* key :
       {"is_encoder_decoder", "add_cross_attention", "use_bidirectional_attention", "use_qk_norm"})
    if (keys.boolean(key, false))
      keys.refuse(key, "only causal decoders as transformers' own classes are supported");
  if (!keys.boolean("is_causal", true)) keys.refuse("is_causal", "only causal attention is supported");
  if (family != ModelFamily::llama && keys.boolean("mlp_bias", false))
    keys.refuse("mlp_bias", "this family's MLP has no biases in transformers");
  if (family == ModelFamily::mistral && keys.boolean("attention_bias", false))
    keys.refuse("attention_bias", "this family's attention has no biases in transformers");
  if (family == ModelFamily::qwen2 && !keys.boolean("attention_bias", true))
    keys.refuse("attention_bias", "this family's q, k and v projections always have biases in transformers");
  if (keys.has("architectures")) {
    const std::string first = keys.first_text("architectures");
    const auto ends_with = [&](const std::string& end) {
      return first.size() >= end.size() && first.compare(first.size() - end.size(), end.size(), end) == 0;
    };
    if (!ends_with("ForCausalLM") && !ends_with("Model"))
      keys.refuse("architectures", "expected a causal language model such as [\"LlamaForCausalLM\"]");
  }
}

// One window a layer, 0 for full attention, as transformers 5 chooses them.
std::vector<int64_t> layer_windows(const ConfigKeys& keys, ModelFamily family, int64_t layers) {
  const bool qwen = family == ModelFamily::qwen2 || family == ModelFamily::qwen3;
  std::optional<int64_t> window;
  if (family == ModelFamily::mistral) window = keys.integer_or_null("sliding_window", 4096);
  if (qwen && keys.boolean("use_sliding_window", false))
    window = keys.integer_or_null("sliding_window", 4096);
  if (family == ModelFamily::llama && keys.boolean("use_sliding_window", false))
    keys.refuse("use_sliding_window",
                "llama has no sliding windows; a model that has them is a mistral or qwen");
  if (window && *window < 1)
    keys.refuse("sliding_window", "expected at least 1 token, or null for full attention");

  std::vector<int64_t> windows(static_cast<size_t>(layers), 0);
  const int64_t first_sliding = qwen ? keys.integer("max_window_layers", 28) : 0;
  for (int64_t layer = 0; layer < layers; ++layer)
    if (window && layer >= first_sliding) windows[static_cast<size_t>(layer)] = *window;
  if (!keys.has("layer_types")) return windows;

  const Json& types = keys.json()["layer_types"];
  if (!types.is_array() || static_cast<int64_t>(types.size()) != layers)
    keys.refuse("layer_types", cat("expected a list of num_hidden_layers = ", layers, " names"));
  for (size_t layer = 0; layer < types.size(); ++layer) {
    const std::string type =
        types[layer].is_string() ? quotation(types[layer].get<std::string>()) : quotation(types[layer]);
    const bool sliding = type == "sliding_attention";
    if (!sliding && type != "full_attention" && type != "attention")
      keys.refuse("layer_types", cat("layer ", layer, " is ", type,
                                     "; only full_attention and sliding_attention are "
                                     "supported"));
    if (sliding && !window)
      keys.refuse("layer_types", cat("layer ", layer, " slides, but no window is in force: ",
                                     qwen ? "set use_sliding_window true and sliding_window to its width"
                                          : "this model has no sliding_window"));
    // Mistral and Llama classes do not read layer_types: what it says must be what they do.
    if (!qwen && sliding != (windows[layer] != 0))
      keys.refuse("layer_types",
                  cat("layer ", layer, " is ", type, ", but transformers' ", keys.text("model_type", ""),
                      " ignores this key and would ", windows[layer] != 0 ? "slide" : "not slide"));
    windows[layer] = sliding ? *window : 0;
  }
  return windows;
}

void check_sizes(const ConfigKeys& keys, const ModelConfig& config) {
  const auto check = [&](const char* key, int64_t value) {
    if (value < 1 || value > largest_size)
      throw ConfigError(cat(keys.origin(), ": ", key, " is ", value, "; expected 1 to ", largest_size));
  };
  check("vocab_size", config.vocab_size);
  check("hidden_size", config.hidden_size);
  check("intermediate_size", config.intermediate_size);
  check("num_hidden_layers", config.num_hidden_layers);
  check("num_attention_heads", config.num_attention_heads);
  check("num_key_value_heads", config.num_key_value_heads);
  check("max_position_embeddings", config.max_position_embeddings);
  if (config.num_hidden_layers > 100'000) keys.refuse("num_hidden_layers", "expected at most 100,000");
  if (config.num_attention_heads % config.num_key_value_heads != 0)
    throw ConfigError(cat(keys.origin(), ": num_attention_heads ", config.num_attention_heads,
                          " is not a multiple of num_key_value_heads ", config.num_key_value_heads));
  if (!(config.rms_norm_eps > 0 && config.rms_norm_eps < 1))
    keys.refuse("rms_norm_eps", "expected more than 0, less than 1");
  if (!(config.initializer_range >= 0 && config.initializer_range <= 1))
    keys.refuse("initializer_range", "expected 0 to 1");
}

int64_t head_width(const ConfigKeys& keys, const ModelConfig& config, int64_t family_head_dim) {
  const bool multiple = config.hidden_size % config.num_attention_heads == 0;
  if (!multiple && (config.family == ModelFamily::llama || (family_head_dim == 0 && !keys.has("head_dim"))))
    throw ConfigError(cat(keys.origin(), ": hidden_size ", config.hidden_size, " is not a multiple of ",
                          "num_attention_heads ", config.num_attention_heads));
  const int64_t by_division = config.hidden_size / config.num_attention_heads;
  const int64_t width = keys.integer_or_null("head_dim", family_head_dim != 0 ? family_head_dim : by_division)
                            .value_or(by_division);
  if (width < 2 || width % 2 != 0 || width > 65536)
    throw ConfigError(
        cat(keys.origin(), ": head_dim is ", width, "; rotary embeddings need an even width, 2 or more"));
  return width;
}

}  // namespace

int64_t ModelConfig::parameter_count() const {
  const int64_t m = hidden_size, width = query_width() + 2 * key_value_width();
  if (family == ModelFamily::bert) {
    const int64_t layer_norm = 2 * m, square = m * m + m;
    const int64_t layer = 4 * square + 2 * layer_norm + 2 * intermediate_size * m + intermediate_size + m;
    const int64_t embedding = (vocab_size + max_position_embeddings + type_vocab_size) * m + layer_norm;
    return embedding + num_hidden_layers * layer + square + layer_norm + vocab_size;
  }
  int64_t layer = 2 * m + width * m + query_width() * m + 3 * intermediate_size * m;
  if (qkv_bias) layer += width;
  if (output_bias) layer += m;
  if (mlp_bias) layer += 2 * intermediate_size + m;
  if (qk_norm) layer += 2 * head_dim;
  const int64_t matrices = tie_word_embeddings ? 1 : 2;
  return num_hidden_layers * layer + matrices * vocab_size * m + m;
}

int64_t ModelConfig::matmul_parameter_count() const {
  const int64_t attention = (2 * query_width() + 2 * key_value_width()) * hidden_size;
  const int64_t mlp = (family == ModelFamily::bert ? 2 : 3) * intermediate_size * hidden_size;
  const int64_t transform = family == ModelFamily::bert ? hidden_size * hidden_size : 0;
  return num_hidden_layers * (attention + mlp) + transform + vocab_size * hidden_size;
}

double ModelConfig::attention_pairs(int64_t tokens) const {
  const auto S = static_cast<double>(tokens);
  double squares = 0;
  for (const int64_t window : layer_window) {
    const auto W = static_cast<double>(window);
    squares += window == 0 || window >= tokens ? S * S : 2 * W * S - W * W;
  }
  return causality == Causality::causal ? squares / 2 : squares;
}

ModelConfig parse_model_config(const Json& json, const std::string& origin) {
  const ConfigKeys keys(json, origin);
  if (keys.text("model_type", "") == "bert") return parse_bert_config(keys);
  const FamilyDefaults& defaults = family_of(keys);
  ModelConfig config;
  config.family = defaults.family;
  config.raw = json;
  refuse_unbuilt(keys, config.family);
  for (const char* key :
       {"attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", "dropout"})
    if (const double rate = keys.number(key, 0); rate != 0) config.dropout[key] = rate;

  config.vocab_size = keys.integer("vocab_size", defaults.vocab_size);
  config.hidden_size = keys.integer("hidden_size", 4096);
  config.intermediate_size = keys.integer("intermediate_size", defaults.intermediate_size);
  config.num_hidden_layers = keys.integer("num_hidden_layers", 32);
  config.num_attention_heads = keys.integer("num_attention_heads", 32);
  const int64_t default_heads =
      defaults.key_value_heads != 0 ? defaults.key_value_heads : config.num_attention_heads;
  config.num_key_value_heads =
      keys.integer_or_null("num_key_value_heads", default_heads).value_or(config.num_attention_heads);
  config.max_position_embeddings = keys.integer("max_position_embeddings", defaults.max_position_embeddings);
  config.rms_norm_eps = keys.number("rms_norm_eps", 1e-6);
  config.initializer_range = keys.number("initializer_range", 0.02);
  check_sizes(keys, config);
  config.head_dim = head_width(keys, config, defaults.head_dim);

  config.tie_word_embeddings = keys.boolean("tie_word_embeddings", false);
  const bool attention_bias = config.family != ModelFamily::qwen2 && keys.boolean("attention_bias", false);
  config.qkv_bias = config.family == ModelFamily::qwen2 || attention_bias;
  config.output_bias = attention_bias;
  config.mlp_bias = keys.boolean("mlp_bias", false);
  config.qk_norm = config.family == ModelFamily::qwen3;
  config.layer_window = layer_windows(keys, config.family, config.num_hidden_layers);
  config.rope = parse_rope_config(keys, config);

  const auto id = [&](int64_t value) {
    return defaults.token_ids ? std::optional<int64_t>(value) : std::nullopt;
  };
  config.bos_token_id = keys.first_integer("bos_token_id", id(1));
  config.eos_token_id = keys.first_integer("eos_token_id", id(2));
  config.pad_token_id = keys.first_integer("pad_token_id", std::nullopt);
  return config;
}

ModelConfig read_model_config(const std::filesystem::path& model_dir) {
  const auto file = model_dir / "config.json";
  return parse_model_config(read_json(file), file.string());
}

}  // namespace trireme
