#include "trireme/model/model_config.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "trireme/base/attention_squares.h"
#include "trireme/base/error.h"
#include "trireme/model/decoder_config.h"
#include "trireme/model/language_model.h"
#include "trireme/model/model_family.h"

namespace trireme {
namespace {

const ModelFamily& family_of(const ConfigKeys& keys, const ModelFamilies& families) {
  const std::string type = keys.text("model_type", "");
  std::vector<std::string> known;
  for (const ModelFamily* family : families)
    for (const std::string& model_type : family->model_types) {
      if (type == model_type) return *family;
      known.push_back(model_type);
    }
  const auto listed = [](const std::vector<std::string>& names) {
    std::string list;
    for (size_t i = 0; i < names.size(); ++i)
      list += cat(i == 0 ? "" : i + 1 == names.size() ? " and " : ", ", names[i]);
    return list;
  };
  for (const ModelFamily* family : families)
    if (const auto why = family->refused_types.find(type); why != family->refused_types.end())
      keys.refuse("model_type", why->second);
  throw ConfigError(cat(keys.origin(), ": model_type is ",
                        type.empty() ? "missing" : "\"" + quotation(type) + "\"", "; Trireme trains ",
                        listed(known), ", and the language model inside ", listed(whole_model_types())));
}

// What every family's parse must fill: a family that forgets a field is told its name.
void check_parsed(const ModelConfig& config) {
  const std::string family = config.family->model_types.front();
  std::vector<std::pair<const char*, int64_t>> filled = config.sizes();
  filled.emplace_back("mlp_kept_width", config.mlp_kept_width);
  for (const auto& [name, size] : filled)
    TRIREME_ASSERT(size > 0, "family ", family, ": parse left ", name, " at ", size);
  TRIREME_ASSERT(std::ssize(config.layer_window) == config.num_hidden_layers, "family ", family,
                 ": parse filled ", config.layer_window.size(), " entries of layer_window for ",
                 config.num_hidden_layers, " layers");
}

// Parameters and their bytes are counted in 63 bits. Every matrix has at most this many rows or columns beside
// hidden_size, but for the table of layers' inputs.
void check_countable(const ConfigKeys& keys, const ModelConfig& config) {
  const int64_t widest =
      std::max({config.vocab_size, config.heads().projected_width(),
                config.heads_of_full_attention().projected_width(), config.intermediate_size,
                config.sharing_intermediate_size, config.shared_intermediate_size, config.layer_input_width,
                config.type_vocab_size, config.rotates ? 0 : config.max_position_embeddings,
                config.delta_net ? config.delta_net->projected_columns() : 0});
  const auto layers = static_cast<double>(config.num_hidden_layers);
  const double matrices = layers * static_cast<double>(std::max<int64_t>(1, config.num_experts)) *
                          static_cast<double>(config.hidden_size) * static_cast<double>(widest);
  const double table =
      layers * static_cast<double>(config.layer_input_width) * static_cast<double>(config.layer_input_vocab);
  if (matrices + table > 0x1p52)
    keys.refuse("hidden_size",
                "with the file's other sizes the model has more parameters than can be counted");
}

}  // namespace

std::vector<std::pair<const char*, int64_t>> ModelConfig::sizes() const {
  return {{"vocab_size", vocab_size},
          {"hidden_size", hidden_size},
          {expert_kind != nullptr ? expert_kind->width_key : "intermediate_size", intermediate_size},
          {"num_hidden_layers", num_hidden_layers},
          {"num_attention_heads", num_attention_heads},
          {"num_key_value_heads", num_key_value_heads},
          {"head_dim", head_dim},
          {"max_position_embeddings", max_position_embeddings}};
}

int64_t ModelConfig::layer_of_keys(int64_t layer) const {
  if (!shares_keys(layer)) return layer;
  const bool slides = layer_window[static_cast<size_t>(layer)] > 0;
  int64_t source = num_hidden_layers - key_sharing_layers - 1;
  while (source >= 0 && (layer_window[static_cast<size_t>(source)] > 0) != slides) --source;
  return source;
}

bool ModelConfig::gives_keys(int64_t layer) const {
  if (shares_keys(layer)) return false;
  for (int64_t later = num_hidden_layers - key_sharing_layers; later < num_hidden_layers; ++later)
    if (layer_of_keys(later) == layer) return true;
  return false;
}

double ModelConfig::width_scale() const {
  return 1 / std::sqrt(static_cast<double>(hidden_size));
}

double ModelConfig::softmax_scale() const {
  return 1 / std::sqrt(query_pre_attn_scalar.value_or(static_cast<double>(head_dim)));
}

AttentionPairs ModelConfig::attention_pairs(int64_t tokens, const SparseBlocks& sparse) const {
  std::vector<int64_t> common, full;
  for (int64_t layer = 0; layer < num_hidden_layers; ++layer)
    if (!has_delta_net(layer))
      (has_full_heads(layer) ? full : common).push_back(layer_window[static_cast<size_t>(layer)]);
  const double share = (causality == Causality::causal ? 0.5 : 1) * sparse.kept_share(tokens, causality);
  return AttentionPairs(attention_squares(common, tokens), attention_squares(full, tokens)) * share;
}

ModelConfig parse_model_config(const Json& json, const std::string& origin, const ModelFamilies& families,
                               std::set<std::string>* asked) {
  const ConfigKeys keys(json, origin, "", asked);
  const ModelFamily& family = family_of(keys, families);
  keys.refuse_unless_absent({"quantization_config", "compression_config"},
                            "quantized weights cannot be trained; use the unquantized model");
  ModelConfig config = family.parse(keys);
  if (!(config.norm_eps > 0 && config.norm_eps < 1))
    keys.refuse(family.norm_eps_key, "expected more than 0, less than 1");
  if (!(config.initializer_range >= 0 && config.initializer_range <= 1))
    keys.refuse("initializer_range", "expected 0 to 1");
  config.family = &family;
  if (config.raw.is_null()) config.raw = json;
  check_parsed(config);
  check_countable(keys, config);
  // Below 0 it counts from the end, as torch's embedding takes it.
  if (const int64_t padding = config.pad_token_id.value_or(0);
      padding < -config.vocab_size || padding >= config.vocab_size)
    keys.refuse("pad_token_id", cat("expected an id of the vocabulary of ", config.vocab_size, ", or null"));
  return config;
}

ModelConfig read_model_config(const std::filesystem::path& model_dir, const ModelFamilies& families) {
  const auto file = model_dir / "config.json";
  const LanguageModel model = language_model_of(read_json(file), file.string(), model_dir);
  ModelConfig config = parse_model_config(model.config, file.string(), families);
  config.whole_type = model.whole_type;
  return config;
}

}  // namespace trireme
