#include "trireme/model/language_model.h"

#include <algorithm>
#include <optional>

#include "trireme/base/error.h"
#include "trireme/base/folder_entries.h"
#include "trireme/model/lora.h"
#include "trireme/model/rope_config.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

struct WholeModel {
  const char* model_type;
  bool shares_embedding;  // where tie_word_embeddings is silent
  // Published without a text_config, which may lie beside the rest; where there is one, its
  // tie_word_embeddings counts too.
  bool lies_flat;
};

// Those whose tokens without images see each other as in the language model alone.
constexpr WholeModel kWholeModels[] = {
    {"gemma3", true, false},    {"gemma4", true, false},   {"gemma4_unified", true, false},
    {"mistral3", true, false},  {"qwen2_vl", false, true}, {"qwen2_5_vl", false, true},
    {"qwen3_vl", false, false}, {"qwen3_5", false, false}, {"qwen3_5_moe", false, false}};

// A text_config, and its model by itself.
struct TextModel {
  const char *whole_type, *text_type, *model_type, *architecture;
  const char* silent = "{}";  // what transformers assumes and the model by itself does not
  bool slides = true;         // else transformers passes over windows that the model by itself would have
};

constexpr const char* kQwen2VlText = R"({
  "vocab_size": 152064, "hidden_size": 8192, "intermediate_size": 29568, "num_hidden_layers": 80,
  "num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 32768, "rms_norm_eps": 1e-5,
  "rope_theta": 1000000.0, "max_window_layers": 80, "bos_token_id": 151643, "eos_token_id": 151645
})";
constexpr const char* kQwen3VlText = R"({"max_position_embeddings": 128000, "rope_theta": 500000.0})";

constexpr const char* kGemma4UnifiedText =
    R"({"max_position_embeddings": 262144, "sliding_window": 1024, "hidden_size_per_layer_input": 0})";

// The first of a whole model is that of a text_config without a model_type.
constexpr TextModel kTextModels[] = {
    {"gemma3", "gemma3_text", "gemma3_text", "Gemma3ForCausalLM"},
    {"gemma4", "gemma4_text", "gemma4_text", "Gemma4ForCausalLM"},
    {"gemma4_unified", "gemma4_unified_text", "gemma4_text", "Gemma4ForCausalLM", kGemma4UnifiedText},
    {"mistral3", "mistral", "mistral", "MistralForCausalLM"},
    {"mistral3", "ministral3", "ministral3", "Ministral3ForCausalLM"},
    {"qwen2_vl", "qwen2_vl_text", "qwen2", "Qwen2ForCausalLM", kQwen2VlText},
    {"qwen2_5_vl", "qwen2_5_vl_text", "qwen2", "Qwen2ForCausalLM", kQwen2VlText},
    {"qwen3_vl", "qwen3_vl_text", "qwen3", "Qwen3ForCausalLM", kQwen3VlText, false},
    {"qwen3_5", "qwen3_5_text", "qwen3_5_text", "Qwen3_5ForCausalLM"},
    {"qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_moe_text", "Qwen3_5MoeForCausalLM"}};

constexpr const char* kRopeDictionaries[] = {"rope_parameters", "rope_scaling"};
constexpr const char* kPositionKeys[] = {
    "rope_theta",       "rope_local_base_freq", "max_position_embeddings",
    kOriginalPositions, "rope_parameters",      "rope_scaling"};
// Which of a token's three positions (time, height, width) a pair of Qwen's heads is rotated by; without
// images they are equal.
constexpr const char* kMultipleRopeKeys[] = {"mrope_section", "mrope_interleaved"};

// Null: it is no whole model.
const WholeModel* whole_model(const Json& config) {
  const Json type = config.is_object() ? config.value("model_type", Json()) : Json();
  const auto* const known =
      std::ranges::find_if(kWholeModels, [&](const WholeModel& row) { return type == row.model_type; });
  return known == std::end(kWholeModels) ? nullptr : known;
}

// Else the language model's config lies beside the rest.
bool has_text_config(const Json& whole) {
  return !whole.value("text_config", Json()).is_null();
}

const TextModel& text_model(const WholeModel& known, const Json& text, const std::string& origin) {
  const Json type = text.value("model_type", Json());
  std::string list;
  for (const TextModel& row : kTextModels) {
    if (std::string(row.whole_type) != known.model_type) continue;
    if (type.is_null() || type == row.text_type || type == known.model_type) return row;
    list += (list.empty() ? "" : " or ") + std::string(row.text_type);
  }
  throw ConfigError(cat(origin, ": text_config.model_type is ", quotation(type), "; inside a ",
                        known.model_type, " Trireme trains a ", list));
}

void take_single_rope(Json& config) {
  for (const char* key : kRopeDictionaries) {
    const auto rope = config.find(key);
    if (rope == config.end() || !rope->is_object()) continue;
    for (const char* multiple : kMultipleRopeKeys) rope->erase(multiple);
    for (const char* type : {"rope_type", "type"})
      if (rope->value(type, Json()) == "mrope") (*rope)[type] = "default";
  }
}

void fill_silent(Json& config, const TextModel& model) {
  const Json silent = parse_json(model.silent, model.text_type);
  const Json rope = config.value(rope_key(config), Json());  // which may say rope_theta
  for (const auto& [key, value] : silent.items())
    if (!config.contains(key) && !(rope.is_object() && rope.contains(key))) config[key] = value;
}

// All but whether the head shares the embedding.
Json text_of(const Json& whole, const WholeModel& known, const std::string& origin) {
  if (!has_text_config(whole) && !(known.lies_flat && whole.contains("hidden_size")))
    throw ConfigError(
        cat(origin, ": a ", known.model_type, " needs text_config, the config.json of its language model"));
  Json config = has_text_config(whole) ? whole["text_config"] : whole;
  if (!config.is_object())
    throw ConfigError(cat(origin, ": text_config is ", quotation(config), "; expected an object"));
  const TextModel& model = text_model(known, config, origin);
  config.erase("vision_config");
  if (!model.slides)
    for (const char* key : {"use_sliding_window", "sliding_window", "max_window_layers", "layer_types"})
      config.erase(key);
  config["model_type"] = model.model_type;
  config["architectures"] = {model.architecture};
  take_single_rope(config);
  fill_silent(config, model);
  for (const char* key : {"bos_token_id", "eos_token_id", "torch_dtype", "dtype", "quantization_config"})
    if (whole.contains(key) && config.value(key, Json()).is_null()) config[key] = whole[key];
  return config;
}

// None where they are not on this disk: a plan needs config.json alone.
std::optional<SafetensorsSet> weights_of(const fs::path& model_dir) {
  const fs::path index = model_dir / kWeightIndexFile;
  if (!is_there(model_dir / kWeightsFile)) {
    if (!is_there(index)) return std::nullopt;
    const Json listing = read_json(index);
    for (const Json& file : object_value(listing, "weight_map", index.string()))
      if (!file.is_string() || !is_there(model_dir / file.get<std::string>())) return std::nullopt;
  }
  return std::optional<SafetensorsSet>(std::in_place, model_dir);
}

// Two tensors that differ do so at their beginning, or, where one was made larger, at their end; those that
// do not are compared whole when they are read.
bool look_alike(const SafetensorsEntry& first, const SafetensorsEntry& second) {
  if (first.dtype != second.dtype || first.shape != second.shape) return false;
  const int64_t bytes = std::min<int64_t>(first.bytes, 1 << 20);
  const auto read = [bytes](const SafetensorsEntry& entry, int64_t begin) {
    std::string values(static_cast<size_t>(bytes), '\0');
    entry.read(begin, values.data(), bytes);
    return values;
  };
  return read(first, 0) == read(second, 0) &&
         read(first, first.bytes - bytes) == read(second, first.bytes - bytes);
}

// None: there are no weights and nothing is said; the family's own word counts.
std::optional<bool> shares_embedding(const WholeModel& known, const Json& whole, const Json& text,
                                     const fs::path& model_dir) {
  std::optional<bool> said;
  if (whole.contains("tie_word_embeddings")) said = whole["tie_word_embeddings"] == true;
  if (known.lies_flat && text.value("tie_word_embeddings", Json()) == true) said = true;
  if (said == false) return false;
  const std::optional<SafetensorsSet> weights = weights_of(model_dir);
  if (!weights) return said;
  if (!said.value_or(known.shares_embedding)) return false;
  const SafetensorsEntry* const embedding = find_of_language_model(*weights, "model.embed_tokens.weight");
  const SafetensorsEntry* const head = find_of_language_model(*weights, "lm_head.weight");
  return embedding == nullptr || head == nullptr || look_alike(*embedding, *head);
}

}  // namespace

LanguageModel language_model_of(const Json& whole, const std::string& origin, const fs::path& model_dir) {
  const WholeModel* const known = whole_model(whole);
  if (known == nullptr) return {whole, {}};
  Json config = text_of(whole, *known, origin);
  const std::optional<bool> tied = shares_embedding(*known, whole, config, model_dir);
  if (tied) config["tie_word_embeddings"] = *tied;
  return {std::move(config), known->model_type};
}

Json with_positions_of(const Json& whole, const Json& config) {
  const WholeModel* const known = whole_model(whole);
  TRIREME_ASSERT(known != nullptr, "no whole model");
  const Json single = text_of(whole, *known, "config.json");
  const auto same = [&](const char* key) { return config.value(key, Json()) == single.value(key, Json()); };
  if (std::ranges::all_of(kPositionKeys, same)) return whole;
  Json result = whole;
  Json& text = has_text_config(result) ? result["text_config"] : result;
  const Json before = text.value(rope_key(text), Json());
  // All together: of a mixture of both forms transformers would read one.
  for (const char* key : kPositionKeys) {
    text.erase(key);
    if (config.contains(key)) text[key] = config[key];
  }
  for (const char* multiple : kMultipleRopeKeys) {
    if (!before.is_object() || !before.contains(multiple)) continue;
    Json& rope = text[is_filled(text, "rope_parameters") ? "rope_parameters" : "rope_scaling"];
    if (!rope.is_object()) rope = {{"rope_type", "default"}};
    rope[multiple] = before[multiple];
  }
  return result;
}

const SafetensorsEntry* find_of_language_model(const SafetensorsSet& weights, const std::string& name) {
  if (const SafetensorsEntry* found = weights.find(name)) return found;
  for (const std::string& inside : names_inside(name))
    if (const SafetensorsEntry* found = weights.find(inside)) return found;
  return nullptr;
}

std::vector<std::string> names_inside(const std::string& name) {
  const std::string model = "model.", inside = "language_model.", peft = kAdapterPrefix;
  const std::string before = name.starts_with(peft) ? peft : "", after = name.substr(before.size());
  if (!after.starts_with(model)) return {before + inside + after};
  return {before + model + inside + after.substr(model.size()), before + inside + after};
}

std::string name_in_whole_model(const std::string& name) {
  const std::vector<std::string> names = names_inside(name);
  return names.size() > 1 ? names.front() : name;
}

std::vector<std::string> whole_model_types() {
  std::vector<std::string> types;
  for (const WholeModel& row : kWholeModels) types.emplace_back(row.model_type);
  return types;
}

const std::vector<std::string>& image_tensor_names() {
  static const std::vector<std::string> names{"vision_tower.",   "multi_modal_projector.", "visual.",
                                              "audio_tower.",    "embed_vision.",          "embed_audio.",
                                              "vision_embedder."};
  return names;
}

}  // namespace trireme
