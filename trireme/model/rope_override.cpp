#include "trireme/model/rope_override.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "trireme/base/contains.h"
#include "trireme/base/error.h"
#include "trireme/base/nearest_name.h"
#include "trireme/base/sizes.h"
#include "trireme/model/model_family.h"
#include "trireme/model/rope_config.h"

namespace trireme {
namespace {

constexpr const char* kForms =
    R"(yarn:16, linear:4, dynamic:4, llama3:8, proportional:4, default, or an object such as {"rope_type": "yarn", "factor": 16})";

// KIND or KIND:FACTOR, in the object's form.
Json parse_short_form(const std::string& text) {
  const size_t colon = text.find(':');
  Json rope = {{"rope_type", text.substr(0, colon)}};
  if (colon != std::string::npos) {
    const std::string number = text.substr(colon + 1);
    char* end = nullptr;
    rope["factor"] = std::strtod(number.c_str(), &end);
    if (number.empty() || *end != '\0' || !std::isfinite(rope["factor"].get<double>()))
      throw ConfigError(cat("--rope_scaling is '", quotation(text), "'; expected ", kForms));
  }
  if (rope["rope_type"] == "llama3") rope.update({{"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}});
  return rope;
}

RopeKind kind_of(const Json& rope, const std::string& text) {
  const Json type = rope.value("rope_type", Json());
  const auto kind = value_named<RopeKind>(type.is_string() ? type.get<std::string>() : "");
  if (kind) return *kind;
  throw ConfigError(cat("--rope_scaling is '", quotation(text), "'; expected ", kForms));
}

Json parse_scaling(const std::string& text) {
  Json rope = text.starts_with('{') ? parse_json_flag(text, "--rope_scaling") : parse_short_form(text);
  if (rope.contains("type") && !rope.contains("rope_type")) rope["rope_type"] = rope["type"];
  rope.erase("type");
  const RopeKind kind = kind_of(rope, text);
  for (const auto& [key, value] : rope.items())
    if (const auto names = rope_keys(); !contains(names, key))
      throw ConfigError(cat("--rope_scaling has no key '", quotation(key), "'", did_you_mean(key, names)));
  const Json factor = rope.value("factor", Json());
  if (kind == RopeKind::standard
          ? !factor.is_null()
          : !factor.is_number() || !std::isfinite(factor.get<double>()) || !(factor.get<double>() >= 1))
    throw ConfigError(cat("--rope_scaling is '", quotation(text), "': the factor is ", quotation(factor),
                          kind == RopeKind::standard ? "; default has none"
                                                     : "; expected a number of 1 or more, as in yarn:16"));
  return rope;
}

// Where config.json has its rotary embedding. `rope_scaling` beside `rope_theta` is what every version of
// transformers reads; the newer form stays where the file has it.
struct RopeEntry {
  bool newer;     // rope_parameters
  bool of_types;  // Gemma 3: an object for each type of layer
  const char* key() const { return newer ? "rope_parameters" : "rope_scaling"; }
};
RopeEntry rope_entry(const ModelConfig& config) {
  const bool newer = is_filled(config.raw, "rope_parameters") && !is_filled(config.raw, "rope_scaling");
  return {newer, newer && config.window_rope};
}

Json own_rope(const ModelConfig& config) {
  const RopeEntry entry = rope_entry(config);
  if (!is_filled(config.raw, entry.key())) return Json::object();
  const Json& rope = config.raw[entry.key()];
  const Json own = entry.of_types ? rope.value(kFullAttention, Json()) : rope;
  return own.is_null() ? Json::object() : own;
}

// KIND:FACTOR of the kind that the model has changes its factor and leaves its other numbers.
Json scaling_of(const std::string& text, const ModelConfig& before) {
  Json rope = parse_scaling(text);
  const Json own = own_rope(before);
  const bool same_kind = kind_of(rope, text) == before.rope.kind;
  // A share of pairs is of the proportional kind alone, one of values is of the model with any kind.
  const bool keeps_share = same_kind || before.rope.kind != RopeKind::proportional;
  if (keeps_share && own.contains(kTurningShare) && !rope.contains(kTurningShare))
    rope[kTurningShare] = own[kTurningShare];
  if (!same_kind || text.starts_with('{')) return rope;
  for (const char* key : {"beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor",
                          "truncate", "low_freq_factor", "high_freq_factor"})
    if (own.contains(key)) rope[key] = own[key];
  return rope;
}

// Of a model that scales its queries (rope_config.h), by the length of pretraining, which transformers has
// under one key with the rotary embedding's.
void keep_query_scaling(Json& rope, const QueryScaling& scaling) {
  const Json asked = rope.value(kOriginalPositions, Json(scaling.original_positions));
  if (asked != scaling.original_positions)
    throw ConfigError(cat("--rope_scaling: original_max_position_embeddings is ", quotation(asked),
                          ", and this model scales its queries by ", scaling.original_positions,
                          ", which transformers reads from the same key; leave it out"));
  rope[kQueryScalingBeta] = scaling.beta;
  rope[kOriginalPositions] = scaling.original_positions;
}

int64_t stretched(double factor, int64_t tokens) {
  constexpr double kMost = 9e15;  // a whole number that a double holds, for any factor
  return std::llround(std::min(kMost, factor * static_cast<double>(tokens)));
}

void demand_original_positions(const ModelConfig& config) {
  if (const std::string lacking = lacking_original_positions(config); !lacking.empty())
    throw ConfigError(lacking);
}

// What the scaling does to the positions, in `json` and in its rotary part `rope`.
void set_positions(Json& json, Json& rope, const ModelConfig& before, RopeKind kind) {
  const Json asked = rope.value(kOriginalPositions, Json());
  if (!asked.is_null() && (!asked.is_number_integer() || asked.get<int64_t>() < 1))
    throw ConfigError(cat("--rope_scaling: original_max_position_embeddings is ", quotation(asked),
                          "; expected a whole number of 1 or more"));
  if (asked.is_null()) demand_original_positions(before);
  const int64_t original = asked.is_null() ? original_positions(before) : asked.get<int64_t>();
  rope.erase(kOriginalPositions);
  json["max_position_embeddings"] = original;
  if (kind == RopeKind::standard || kind == RopeKind::dynamic_ntk) return;
  int64_t positions = stretched(rope["factor"].get<double>(), original);
  // Llama 3.1 was trained beyond what its factor stretches.
  if (kind == RopeKind::llama3 && before.rope.kind == kind)
    positions = std::max(positions, before.max_position_embeddings);
  json["max_position_embeddings"] = positions;
  // transformers warns of a key that linear scaling does not read inside, and none is read beside it. Of a
  // model with several rotary embeddings no key beside them is read, and the factor tells it.
  if (kind != RopeKind::linear && kind != RopeKind::proportional)
    rope[kOriginalPositions] = original;
  else if (!before.window_rope)
    json[kOriginalPositions] = original;
}

// The override is of the other layers.
void check_layers_to_override(const ModelConfig& config) {
  if (config.window_rope &&
      std::ranges::all_of(config.layer_window, [](int64_t window) { return window > 0; }))
    throw ConfigError(
        "--rope_scaling and --rope_theta change the layers with full attention, and every layer of this "
        "model slides over a window; for a longer sequence raise max_position_embeddings of its config.json");
}

// Another kind, or another share, would be another model.
void check_turning_share(const ModelConfig& config, RopeKind kind, const Json& rope) {
  const double share = config.rope.turning_share;
  if (config.rope.kind != RopeKind::proportional) {
    if (rope.value(kTurningShare, Json(share)) == share) return;
    throw ConfigError(cat("--rope_scaling: this model turns ", number_text(share),
                          " of the values of each head, and ", kTurningShare, " ",
                          quotation(rope[kTurningShare]), " would be another model; leave it out"));
  }
  if (kind == config.rope.kind && rope.value(kTurningShare, Json(1)) == share) return;
  throw ConfigError(
      cat("--rope_scaling: this model turns ", number_text(share), " of the pairs of each head, and ",
          name_of(kind), " would turn others; expected ",
          "proportional with a factor, as in proportional:4 (proportional:1 takes a scaling away)"));
}

// They keep the embedding that they have; one that is made of max_position_embeddings would become another.
void check_sliding_layers(const ModelConfig& before, const ModelConfig& after) {
  if (!before.window_rope) return;
  const RopeKind kind = before.window_rope->kind;
  if (kind == RopeKind::standard || kind == RopeKind::linear) return;
  if (kind == RopeKind::dynamic_ntk ? before.max_position_embeddings == after.max_position_embeddings
                                    : before.window_rope->original_max_position_embeddings ==
                                          after.window_rope->original_max_position_embeddings)
    return;
  throw ConfigError(cat("--rope_scaling and --rope_theta change max_position_embeddings, of which the ",
                        name_of(kind),
                        " rotary embedding of this model's sliding layers is made: give them "
                        "original_max_position_embeddings in rope_parameters.sliding_attention of its "
                        "config.json, or another kind"));
}

}  // namespace

int64_t original_positions(const ModelConfig& config) {
  const int64_t original = config.rope.original_max_position_embeddings;
  return original > 0 ? original : config.max_position_embeddings;
}

void list_rope_options(OptionList& list, RopeOverride& rope) {
  // On resume the model is compared, which knows what these made of it.
  list.text("rope_scaling", rope.scaling,
            "in place of the model's own: yarn:16, linear:4, dynamic:4, llama3:8, proportional:4, default, "
            "or JSON as in "
            "config.json; the factor is of the length of pretraining")
      .on_resume(ResumeRule::by_content)
      .in_stages();
  list.real("rope_theta", rope.theta, above(1, 1e18),
            "in place of the model's own; alone, positions grow to the length")
      .on_resume(ResumeRule::by_content)
      .in_stages();
}

ModelConfig with_rope(const ModelConfig& config, const RopeOverride& override) {
  if (!override.given()) return config;
  if (!config.rotates)
    throw ConfigError(cat("--rope_scaling and --rope_theta: a ", config.family->model_types.front(),
                          " has a table of ", config.max_position_embeddings,
                          " positions and rotates nothing; leave them out"));
  check_layers_to_override(config);
  Json json = config.raw;
  const RopeEntry entry = rope_entry(config);
  const char* const key = entry.key();
  Json rope = own_rope(config);
  double theta = config.rope.theta;
  RopeKind kind = config.rope.kind;
  if (!override.scaling.empty()) {
    rope = scaling_of(override.scaling, config);
    kind = kind_of(rope, override.scaling);
    check_turning_share(config, kind, rope);
    json.erase(kOriginalPositions);
    set_positions(json, rope, config, kind);
    if (rope.contains("rope_theta")) {
      if (!rope["rope_theta"].is_number())
        throw ConfigError(cat("--rope_scaling: rope_theta is ", quotation(rope["rope_theta"]),
                              "; expected a number above 1"));
      theta = rope["rope_theta"].get<double>();
      if (override.theta && *override.theta != theta)
        throw ConfigError(cat("--rope_theta ", number_text(*override.theta), " contradicts rope_theta ",
                              number_text(theta), " of --rope_scaling; leave one of them out"));
    }
  }
  if (config.rope.query_scaling) keep_query_scaling(rope, *config.rope.query_scaling);
  theta = override.theta.value_or(theta);
  const bool unstretched =
      kind == RopeKind::standard || (kind == RopeKind::proportional && rope.value("factor", Json(1)) == 1);
  if (unstretched && override.theta) {
    const Json positions = json.value("max_position_embeddings", Json());
    json["max_position_embeddings"] =
        std::max(positions.is_null() ? config.max_position_embeddings : positions.get<int64_t>(),
                 override.longest_tokens);
  }
  const Json types = entry.of_types ? json[key] : Json();
  for (const char* old : {"rope_parameters", "rope_scaling", "rope_theta"}) json.erase(old);
  rope.erase("rope_theta");
  if (entry.newer) {
    rope["rope_theta"] = theta;
    rope["rope_type"] = name_of(kind);
    json["rope_parameters"] = entry.of_types ? types : rope;
    if (entry.of_types) json["rope_parameters"][kFullAttention] = rope;
  } else {
    json["rope_theta"] = theta;
    json["rope_scaling"] = kind == RopeKind::standard && !config.rope.query_scaling ? Json() : rope;
  }
  ModelConfig result = parse_model_config(
      json, "the model's config.json with --rope_scaling and --rope_theta", {config.family});
  result.whole_type = config.whole_type;
  check_sliding_layers(config, result);
  return result;
}

RopeOverride pinned(const RopeOverride& rope, const ModelConfig& before) {
  if (rope.scaling.empty()) return rope;
  RopeOverride result = rope;
  Json scaling = scaling_of(rope.scaling, before);
  if (!scaling.contains(kOriginalPositions)) {
    demand_original_positions(before);
    scaling[kOriginalPositions] = original_positions(before);
  }
  result.scaling = scaling.dump();
  return result;
}

// Some published linear scalings start from max_position_embeddings, and others have reached it.
std::string lacking_original_positions(const ModelConfig& config) {
  if (config.rope.kind != RopeKind::linear || config.window_rope) return {};
  if (config.raw.contains(kOriginalPositions) ||
      config.raw.value(rope_key(config.raw), Json::object()).contains(kOriginalPositions))
    return {};
  return cat("the model's config.json has a linear rope_scaling by ", number_text(config.rope.factor),
             " and does not say from which length, so it is not known what more would be; add "
             "\"original_max_position_embeddings\" to it, the length before it was stretched");
}

int64_t position_reach(const ModelConfig& config) {
  if (config.rope.kind == RopeKind::standard || !lacking_original_positions(config).empty())
    return config.max_position_embeddings;
  return std::max(config.max_position_embeddings, stretched(config.rope.factor, original_positions(config)));
}

std::string rope_scaling_to_reach(const ModelConfig& config, int64_t tokens) {
  const int64_t original = original_positions(config);
  const RopeKind kind = config.rope.kind;
  demand_original_positions(config);
  const bool keeps = kind == RopeKind::proportional || (config.window_rope && kind == RopeKind::linear);
  return cat(name_of(keeps ? kind : RopeKind::yarn), ":", (tokens + original - 1) / original);
}

std::string rope_text(const ModelConfig& config) {
  const RopeConfig& rope = config.rope;
  return cat("rope ", name_of(rope.kind),
             rope.kind == RopeKind::standard ? ""
             : lacking_original_positions(config).empty()
                 ? cat(" x ", number_text(rope.factor), " of ", format_count(original_positions(config)),
                       " positions")
                 : cat(" x ", number_text(rope.factor)),
             ", theta ", number_text(rope.theta), ": ", format_count(position_reach(config)), " positions");
}

// https://huggingface.co/Qwen/Qwen3-8B: 40,960 positions are 32,768 of pretraining and room for a prompt.
std::string published_scaling_note(const ModelConfig& config) {
  constexpr int64_t kPositions = 40'960, kPublished = 32'768;
  const Json type = config.raw.value("model_type", Json());
  if ((type != "qwen3" && type != "qwen3_moe") || config.rope.kind != RopeKind::yarn ||
      original_positions(config) != kPositions)
    return {};
  return cat(
      "yarn stretches the ", format_count(kPositions),
      " positions of this model's config.json, where Qwen publishes it from ", format_count(kPublished),
      "; theirs is --rope_scaling '", R"({"rope_type": "yarn", "factor": )", number_text(config.rope.factor),
      R"(, "original_max_position_embeddings": )", kPublished, "}', which reaches ",
      format_count(static_cast<int64_t>(static_cast<double>(kPublished) * config.rope.factor)), " positions");
}

}  // namespace trireme
