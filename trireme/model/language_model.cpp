#include "trireme/model/language_model.h"

#include <algorithm>
#include <optional>

#include "trireme/base/error.h"
#include "trireme/base/safetensors.h"
#include "trireme/model/lora.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

struct WholeModel {
  const char* model_type;
  const char* text_type;  // of a text_config without a model_type
  bool shares_embedding;  // where tie_word_embeddings is silent
};

// Those whose tokens without images see each other as in the language model alone.
constexpr WholeModel kWholeModels[] = {{"gemma3", "gemma3_text", true},
                                       {"mistral3", "mistral", true},
                                       {"qwen2_vl", "qwen2_vl_text", false},
                                       {"qwen2_5_vl", "qwen2_5_vl_text", false},
                                       {"qwen3_vl", "qwen3_vl_text", false}};

// What a text_config is called, and its model by itself.
struct TextModel {
  const char *text_type, *model_type, *architecture;
};
constexpr TextModel kTextModels[] = {
    {"gemma3_text", "gemma3_text", "Gemma3ForCausalLM"},   {"mistral", "mistral", "MistralForCausalLM"},
    {"ministral3", "ministral3", "Ministral3ForCausalLM"}, {"qwen2_vl_text", "qwen2", "Qwen2ForCausalLM"},
    {"qwen2_5_vl_text", "qwen2", "Qwen2ForCausalLM"},      {"qwen3_vl_text", "qwen3", "Qwen3ForCausalLM"}};

constexpr const char* kRopeDictionaries[] = {"rope_parameters", "rope_scaling"};
// Which of a token's three positions (time, height, width) a pair of Qwen's heads is rotated by; without images
// they are equal.
constexpr const char* kMultipleRopeKeys[] = {"mrope_section", "mrope_interleaved"};

void take_single_rope(Json& config) {
  for (const char* key : kRopeDictionaries) {
    const auto rope = config.find(key);
    if (rope == config.end() || !rope->is_object()) continue;
    for (const char* multiple : kMultipleRopeKeys) rope->erase(multiple);
    for (const char* type : {"rope_type", "type"})
      if (rope->value(type, Json()) == "mrope") (*rope)[type] = "default";
  }
}

// None where they are not on this disk: a plan needs config.json alone.
std::optional<SafetensorsSet> weights_of(const fs::path& model_dir) {
  const fs::path index = model_dir / kWeightIndexFile;
  if (fs::exists(index)) {
    const Json listed = object_value(read_json(index), "weight_map", index.string());
    for (const Json& file : listed)
      if (!file.is_string() || !fs::exists(model_dir / file.get<std::string>())) return std::nullopt;
  } else if (!fs::exists(model_dir / kWeightsFile)) {
    return std::nullopt;
  }
  return std::optional<SafetensorsSet>(std::in_place, model_dir);
}

const SafetensorsEntry* find_inside(const SafetensorsSet& weights, const std::string& name) {
  if (const SafetensorsEntry* found = weights.find(name)) return found;
  for (const std::string& inside : names_inside(name))
    if (const SafetensorsEntry* found = weights.find(inside)) return found;
  return nullptr;
}

// Of two tensors that differ, the first values differ; those that do not are compared whole when they are read.
bool begin_alike(const SafetensorsEntry& first, const SafetensorsEntry& second) {
  if (first.dtype != second.dtype || first.shape != second.shape) return false;
  const int64_t bytes = std::min<int64_t>(first.bytes, 1 << 20);
  std::string of_first(static_cast<size_t>(bytes), '\0'), of_second = of_first;
  first.read(0, of_first.data(), bytes);
  second.read(0, of_second.data(), bytes);
  return of_first == of_second;
}

// What transformers makes of both files. None: there are no weights, and the family's own word counts.
std::optional<bool> shares_embedding(const WholeModel& known, const Json& whole, const Json& text,
                                     const fs::path& model_dir) {
  Json said = whole.value("tie_word_embeddings", Json());
  if (text.value("tie_word_embeddings", Json()) == true) said = true;
  if (said == false) return false;
  if (const auto weights = weights_of(model_dir)) {
    const SafetensorsEntry* const embedding = find_inside(*weights, "model.embed_tokens.weight");
    const SafetensorsEntry* const head = find_inside(*weights, "lm_head.weight");
    if (embedding == nullptr || head == nullptr) return true;
    return (said == true || known.shares_embedding) && begin_alike(*embedding, *head);
  }
  if (said == true) return true;
  return std::nullopt;
}

}  // namespace

LanguageModel language_model_of(const Json& whole, const std::string& origin, const fs::path& model_dir) {
  const Json type = whole.is_object() ? whole.value("model_type", Json()) : Json();
  const auto* const known =
      std::ranges::find_if(kWholeModels, [&](const WholeModel& row) { return type == row.model_type; });
  if (known == std::end(kWholeModels)) return {whole, {}};

  Json config = whole.value("text_config", Json());
  if (config.is_null()) {
    config = whole;  // as Qwen2.5-VL was published
    config.erase("vision_config");
    config["model_type"] = known->text_type;
    if (!config.contains("hidden_size"))
      throw ConfigError(cat(origin, ": a ", known->model_type,
                            " needs text_config, the config.json of its language model"));
  }
  if (!config.is_object())
    throw ConfigError(cat(origin, ": text_config is ", quotation(config), "; expected an object"));
  const Json text_type = config.value("model_type", Json(known->text_type));
  for (const TextModel& text : kTextModels)
    if (text_type == text.text_type) {
      config["model_type"] = text.model_type;
      config["architectures"] = {text.architecture};
    }
  take_single_rope(config);
  for (const char* key : {"bos_token_id", "eos_token_id", "torch_dtype", "dtype", "quantization_config"})
    if (whole.contains(key) && config.value(key, Json()).is_null()) config[key] = whole[key];
  if (const std::optional<bool> tied = shares_embedding(*known, whole, config, model_dir))
    config["tie_word_embeddings"] = *tied;
  return {std::move(config), known->model_type};
}

Json with_positions_of(const Json& whole, const Json& config) {
  Json result = whole;
  Json& text = result.contains("text_config") ? result["text_config"] : result;
  Json single = text;
  take_single_rope(single);
  for (const char* key : {"rope_theta", "max_position_embeddings", "original_max_position_embeddings",
                          "rope_parameters", "rope_scaling"}) {
    if (config.value(key, Json()) == single.value(key, Json())) continue;
    const Json before = text.value(key, Json());
    text.erase(key);
    if (!config.contains(key)) continue;
    text[key] = config[key];
    for (const char* multiple : kMultipleRopeKeys)
      if (text[key].is_object() && before.is_object() && before.contains(multiple))
        text[key][multiple] = before[multiple];
  }
  return result;
}

std::vector<std::string> names_inside(const std::string& name) {
  const std::string model = "model.", inside = "language_model.", peft = kAdapterPrefix;
  const std::string before = name.starts_with(peft) ? peft : "", after = name.substr(before.size());
  if (!after.starts_with(model)) return {before + inside + after};
  return {before + model + inside + after.substr(model.size()), before + inside + after};
}

const std::vector<std::string>& image_tensor_names() {
  static const std::vector<std::string> names{"vision_tower.", "multi_modal_projector.", "visual."};
  return names;
}

}  // namespace trireme
