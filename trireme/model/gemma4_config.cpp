#include "trireme/model/gemma4_config.h"

#include <algorithm>
#include <optional>
#include <set>

#include "trireme/base/error.h"
#include "trireme/base/parse_whole.h"
#include "trireme/model/decoder_config.h"
#include "trireme/model/rope_config.h"

namespace trireme {
namespace {

// Of layers with full attention, as published files say it. `heads`: as far as they are those of the others.
AttentionHeads full_heads(const ConfigKeys& keys, AttentionHeads heads) {
  heads.width = keys.size("global_head_dim", 512, kWidestHead);
  if (heads.keys_are_values && keys.has("num_global_key_value_heads"))
    heads.key_value = keys.size("num_global_key_value_heads", 1);
  return heads;
}

// transformers writes them with as many digits as the last layer has: "05".
std::optional<size_t> layer_number(const std::string& text, int64_t layers) {
  const auto layer = parse_whole<size_t>(text);
  return layer && *layer < static_cast<size_t>(layers) ? layer : std::nullopt;
}

// As transformers 5 writes it again: what differs from the other layers, by the layer's number.
AttentionHeads full_heads_by_layer(const ConfigKeys& keys, const ModelConfig& config, AttentionHeads heads) {
  const Json& by_layer = keys.json()["per_layer_config"];
  if (by_layer.is_null() || (by_layer.is_object() && by_layer.empty())) return heads;  // no layer differs
  const char* const kExpected =
      "expected head_dim and num_key_value_heads, alike for each layer of full attention and for no other";
  if (!by_layer.is_object()) keys.refuse("per_layer_config", kExpected);
  std::set<size_t> seen;
  for (const auto& [number, of_layer] : by_layer.items()) {
    const ConfigKeys layer_keys(of_layer, keys.origin(), cat("per_layer_config.", number, "."));
    for (const auto& [key, value] : of_layer.items())
      if (key != "head_dim" && key != "num_key_value_heads") layer_keys.refuse(key, kExpected);
    AttentionHeads of_this = heads;
    of_this.width = layer_keys.size("head_dim", config.head_dim, kWidestHead);
    of_this.key_value = layer_keys.size("num_key_value_heads", config.num_key_value_heads);
    const std::optional<size_t> layer = layer_number(number, config.num_hidden_layers);
    if (!layer || config.layer_window[*layer] != 0 || (!seen.empty() && of_this != heads) ||
        !seen.insert(*layer).second)
      keys.refuse("per_layer_config", kExpected);
    heads = of_this;
  }
  if (std::ssize(seen) != std::ranges::count(config.layer_window, 0))
    keys.refuse("per_layer_config", kExpected);
  return heads;
}

// What each layer is told of its token beside x.
void read_layer_inputs(const ConfigKeys& keys, ModelConfig& config) {
  constexpr int64_t kSilent = 256;  // as E2B has it: transformers' own value
  constexpr int64_t kWidest = 65536;
  const char* const kKey = "hidden_size_per_layer_input";
  config.layer_input_width = keys.integer(kKey, kSilent);
  if (config.layer_input_width == 0) return;
  config.layer_input_width = keys.size(kKey, kSilent, kWidest);
  config.layer_input_vocab = keys.size("vocab_size_per_layer_input", 262144);
  if (config.layer_input_vocab < config.vocab_size)
    keys.refuse("vocab_size_per_layer_input", cat("expected at least vocab_size ", config.vocab_size,
                                                  ": each token reads a row of that table"));
}

// Which layers take keys and values of an earlier one.
void read_key_sharing(const ConfigKeys& keys, ModelConfig& config) {
  const char* const kKey = "num_kv_shared_layers";
  config.key_sharing_layers = keys.integer(kKey, 0);
  if (config.key_sharing_layers < 0 || config.key_sharing_layers >= config.num_hidden_layers)
    keys.refuse(kKey, cat("expected 0 to ", config.num_hidden_layers - 1,
                          ", so that a layer is left whose keys they take"));
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
    if (const bool slides = config.layer_window[static_cast<size_t>(layer)] > 0;
        config.shares_keys(layer) && config.layer_of_keys(layer) < 0)
      keys.refuse(kKey, cat("layer ", layer, slides ? " slides" : " has full attention",
                            ", and no layer like it is left whose keys it would take"));
  const bool wide = keys.boolean("use_double_wide_mlp", false);
  if (config.key_sharing_layers > 0 && wide && config.num_experts > 0)
    keys.refuse(
        "use_double_wide_mlp",
        "wide MLPs beside experts are not built here; trireme.parallelize takes them (docs/huggingface.md)");
  config.sharing_intermediate_size = config.intermediate_size * (wide ? 2 : 1);
}

}  // namespace

void read_gemma4(const ConfigKeys& keys, ModelConfig& config) {
  for (const char* key : {"hidden_size_per_layer_input", "vocab_size_per_layer_input", "num_kv_shared_layers",
                          "use_double_wide_mlp", "enable_moe_block", "attention_k_eq_v"})
    if (keys.is_null(key))
      keys.refuse(key,
                  "null says nothing here, and transformers refuses it; leave the key out, or give a value");
  config.experts_beside_mlp = config.num_experts > 0;
  config.post_norms = true;
  config.v_norm = true;
  config.layers_have_scales = true;
  config.query_pre_attn_scalar = 1;
  config.layer_window.back() = 0;  // transformers forces it
  read_layer_inputs(keys, config);
  read_key_sharing(keys, config);
  const bool by_layer = keys.contains("per_layer_config");
  AttentionHeads full = config.heads();
  full.keys_are_values = keys.boolean("attention_k_eq_v", false);
  full = by_layer ? full_heads_by_layer(keys, config, full) : full_heads(keys, full);
  if (full.width % 2 != 0)
    keys.refuse(by_layer ? "per_layer_config" : "global_head_dim", "rotary embeddings need an even width");
  if (full.query % full.key_value != 0)
    keys.refuse(by_layer ? "per_layer_config" : "num_global_key_value_heads",
                cat("num_attention_heads ", full.query, " is not a multiple of ", full.key_value,
                    " key/value heads"));
  config.full_heads = full;
  config.raw = keys.json();
  if (!keys.is_filled("rope_parameters")) config.raw["rope_parameters"] = gemma4_rope_parameters();
  read_layer_ropes(ConfigKeys(config.raw, keys.origin()), /*each_says_all=*/true, config);
}

}  // namespace trireme
