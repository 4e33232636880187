#include "trireme/model/rope_config.h"

#include <algorithm>
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/base/option_list.h"

namespace trireme {
namespace {

RopeKind parse_kind(const ConfigKeys& rope) {
  const auto kind = value_named<RopeKind>(rope.text("rope_type", rope.text("type", "default")));
  if (kind) return *kind;
  rope.refuse(rope.has("rope_type") ? "rope_type" : "type",
              "only default, linear, dynamic, yarn, llama3 and proportional are supported");
}

double required_number(const ConfigKeys& rope, const char* key) {
  if (!rope.has(key)) rope.refuse(key, "this rope type needs it");
  return rope.number(key, 0);
}

// transformers warns below 1 and computes on; a factor that shrinks the context is a mistake.
double scaling_factor(const ConfigKeys& rope) {
  const double factor = required_number(rope, "factor");
  if (!(factor >= 1)) rope.refuse("factor", "expected 1 or more");
  return factor;
}

// What is read beside the rope dictionary.
struct KeysBeside {
  const char* theta = "rope_theta";
  double silent_theta = 10000;
  // transformers reads the original length there first, and truncate; of a layer type's own dictionary it reads
  // the length inside alone, and truncate nowhere.
  bool of_all_layers = true;
  std::optional<double> silent_turning_share = {};
};

int64_t original_length(const ConfigKeys& keys, const ConfigKeys& rope, const ModelConfig& config,
                        const KeysBeside& beside) {
  const bool outside = beside.of_all_layers && keys.has(kOriginalPositions);
  const ConfigKeys& holder = outside ? keys : rope;
  const int64_t length = holder.integer(kOriginalPositions, config.max_position_embeddings);
  if (length < 1) holder.refuse(kOriginalPositions, "expected 1 or more");
  return length;
}

void parse_yarn(const ConfigKeys& rope, const ModelConfig& config, const KeysBeside& beside,
                RopeConfig& result) {
  if (rope.is_null("factor"))
    result.factor = static_cast<double>(config.max_position_embeddings) /
                    static_cast<double>(result.original_max_position_embeddings);
  else
    result.factor = scaling_factor(rope);
  // A zero is taken as absent, as transformers does with `or`.
  result.beta_fast = rope.number("beta_fast", 32);
  result.beta_slow = rope.number("beta_slow", 1);
  if (result.beta_fast == 0) result.beta_fast = 32;
  if (result.beta_slow == 0) result.beta_slow = 1;
  if (result.beta_slow < 0 || result.beta_fast < result.beta_slow)
    rope.refuse("beta_fast", "expected beta_fast >= beta_slow > 0");
  if (const auto meant = rope.number_or_null("attn_factor"); meant.value_or(1) != 1)
    rope.refuse("attn_factor",
                cat("transformers passes this key over; what is meant is \"attention_factor\": ",
                    number_text(*meant * (0.1 * std::log(result.factor) + 1)),
                    ". Write that in its place; without both, scores are as in transformers"));
  result.attention_factor = rope.number_or_null("attention_factor");
  if (result.attention_factor && *result.attention_factor <= 0)
    rope.refuse("attention_factor", "expected more than 0");
  result.mscale = rope.number_or_null("mscale");
  result.mscale_all_dim = rope.number_or_null("mscale_all_dim");
  // To transformers null is false, but where it passes the key over.
  result.truncate = rope.boolean("truncate", !(rope.is_null("truncate") && beside.of_all_layers));
  if (!result.truncate && !beside.of_all_layers)
    rope.refuse("truncate",
                "transformers passes this key over where layer types have their own; leave it out");
}

void parse_llama3(const ConfigKeys& rope, RopeConfig& result) {
  result.factor = scaling_factor(rope);
  result.low_freq_factor = required_number(rope, "low_freq_factor");
  result.high_freq_factor = required_number(rope, "high_freq_factor");
  if (!(result.low_freq_factor > 0) || !(result.high_freq_factor > result.low_freq_factor))
    rope.refuse("high_freq_factor", "expected high_freq_factor > low_freq_factor > 0");
}

double turning_share(const ConfigKeys& holder, double silent) {
  if (holder.is_null(kTurningShare))
    holder.refuse(kTurningShare, "transformers takes no null here; leave it out");
  const double share = holder.number(kTurningShare, silent);
  if (!(share > 0 && share <= 1)) holder.refuse(kTurningShare, "expected more than 0, at most 1");
  return share;
}

RopeConfig parse_rope(const ConfigKeys& keys, const ConfigKeys& rope, const ModelConfig& config,
                      const KeysBeside& beside) {
  for (const auto& [name, value] : rope.json().items())
    if (value.is_object())
      rope.refuse(name, "rotary parameters that differ from layer to layer are not supported here");
  // Which of a token's three positions a pair is turned by: without images they are equal.
  if (!beside.silent_turning_share)
    rope.refuse_unless_absent({"mrope_section", "mrope_interleaved"},
                              "this rotary embedding is not supported");
  rope.refuse_unless_absent({"short_factor", "long_factor"}, "this rotary embedding is not supported");
  const char* const kExpected = "expected more than 1";
  RopeConfig result;
  result.kind = parse_kind(rope);
  if (beside.silent_turning_share && result.kind == RopeKind::proportional)
    rope.refuse("rope_type", "proportional is not built for this family");
  if (beside.silent_turning_share) {
    const ConfigKeys& holder = rope.has(kTurningShare) ? rope : keys;
    result.turning_share = turning_share(holder, *beside.silent_turning_share);
    const auto width = static_cast<int64_t>(result.turning_share * static_cast<double>(config.head_dim));
    if (width < 2 || width % 2 != 0)
      holder.refuse(kTurningShare, cat("of heads ", config.head_dim, " wide it turns ", width,
                                       " values; expected an even number, 2 or more"));
  } else if (result.kind != RopeKind::proportional && rope.number(kTurningShare, 1) != 1) {
    rope.refuse(kTurningShare, "rotating a part of each head is supported as rope_type proportional alone");
  }
  result.theta =
      rope.has("rope_theta") ? rope.number("rope_theta", 0) : keys.number(beside.theta, beside.silent_theta);
  if (!(result.theta > 1))
    rope.has("rope_theta") ? rope.refuse("rope_theta", kExpected) : keys.refuse(beside.theta, kExpected);
  result.original_max_position_embeddings = config.max_position_embeddings;
  switch (result.kind) {
    case RopeKind::standard:
      // A forgotten rope_type would train another model than the one meant.
      if (rope.number("factor", 1) != 1) rope.refuse("factor", "it needs a rope_type other than default");
      break;
    case RopeKind::linear:
      result.original_max_position_embeddings = original_length(keys, rope, config, beside);
      result.factor = scaling_factor(rope);
      break;
    case RopeKind::dynamic_ntk:
      result.factor = scaling_factor(rope);
      if (rope.integer(kOriginalPositions, config.max_position_embeddings) != config.max_position_embeddings)
        rope.refuse(kOriginalPositions,
                    "dynamic NTK starts from max_position_embeddings and ignores this key; remove it, and "
                    "set max_position_embeddings to the length of pretraining");
      if (config.head_dim == 2) keys.refuse("head_dim", "dynamic NTK needs at least 4");
      if (result.turning_share * static_cast<double>(config.head_dim) < 4)
        rope.refuse(kTurningShare, cat("of heads ", config.head_dim,
                                       " wide it turns fewer than the 4 values that dynamic NTK needs"));
      break;
    case RopeKind::yarn:
      result.original_max_position_embeddings = original_length(keys, rope, config, beside);
      parse_yarn(rope, config, beside, result);
      break;
    case RopeKind::llama3:
      result.original_max_position_embeddings = original_length(keys, rope, config, beside);
      parse_llama3(rope, result);
      break;
    case RopeKind::proportional:
      result.original_max_position_embeddings = original_length(keys, rope, config, beside);
      if (rope.has("factor")) result.factor = scaling_factor(rope);
      result.turning_share = turning_share(rope, 1);
      break;
  }
  return result;
}

QueryScaling parse_query_scaling(const ConfigKeys& rope) {
  QueryScaling scaling;
  for (const char* key : {kQueryScalingBeta, kOriginalPositions})
    if (!rope.has(key)) rope.refuse(key, "this family scales its queries by it");
  scaling.beta = rope.number(kQueryScalingBeta, 0);
  if (!(scaling.beta >= 0)) rope.refuse(kQueryScalingBeta, "expected 0 or more");
  scaling.original_positions = rope.size(kOriginalPositions, 0);
  return scaling;
}

ConfigKeys keys_of_types(const ConfigKeys& keys) {
  ConfigKeys of_types = keys.inside("rope_parameters");
  for (const auto& [name, value] : of_types.json().items())
    if (name != kFullAttention && name != kSlidingAttention)
      of_types.refuse(name, cat("expected ", kFullAttention, " and ", kSlidingAttention, ", an object each"));
  return of_types;
}

// Of a model that was stretched before it was published: its positions are those that it reaches.
void set_stretched(const ConfigKeys& rope, const ModelConfig& config, RopeConfig& full) {
  if ((full.kind == RopeKind::linear || full.kind == RopeKind::proportional) && !rope.has(kOriginalPositions))
    full.original_max_position_embeddings =
        std::max<int64_t>(1, std::llround(static_cast<double>(config.max_position_embeddings) / full.factor));
}

}  // namespace

const char* rope_key(const Json& config) {
  return is_filled(config, "rope_scaling") ? "rope_scaling" : "rope_parameters";
}

std::vector<std::string> rope_keys() {
  return {"rope_type",        "type",       "rope_theta",      "factor",
          "beta_fast",        "beta_slow",  "mscale",          "attention_factor",
          "mscale_all_dim",   "truncate",   "low_freq_factor", "high_freq_factor",
          kOriginalPositions, kTurningShare};
}

RopeConfig parse_rope_config(const ConfigKeys& keys, const ModelConfig& config, const RopeOfFamily& family) {
  const char* const key = keys.is_filled("rope_scaling") ? "rope_scaling" : "rope_parameters";
  const ConfigKeys rope = keys.inside(key);
  RopeConfig result =
      parse_rope(keys, rope, config,
                 {.silent_theta = family.silent_theta, .silent_turning_share = family.silent_turning_share});
  if (family.scales_queries) {
    result.query_scaling = parse_query_scaling(rope);
    const int64_t original = result.query_scaling->original_positions;
    if (keys.has(kOriginalPositions) && keys.integer(kOriginalPositions, 0) != original)
      keys.refuse(kOriginalPositions, cat("inside ", key, " it is ", original, "; leave one of them out"));
    result.original_max_position_embeddings = original;
  }
  return result;
}

void read_layer_ropes(const ConfigKeys& keys, bool each_says_all, ModelConfig& config) {
  if (each_says_all)
    keys.refuse_unless_absent({"rope_scaling", "rope_theta", "rope_local_base_freq"},
                              "transformers passes it over in this family; write rope_parameters");
  const ConfigKeys of_types = keys_of_types(keys);
  const auto of_type = [&](const char* type) {
    if (each_says_all && !of_types.is_filled(type)) of_types.refuse(type, "expected an object");
    ConfigKeys rope = of_types.inside(type);
    if (each_says_all && !rope.has("rope_theta")) rope.refuse("rope_theta", "this family needs it");
    return rope;
  };
  ConfigKeys full = of_type(kFullAttention);
  if (keys.is_filled("rope_scaling")) {
    if (!of_types.json().empty())
      keys.refuse("rope_scaling", "rope_parameters says it too; leave one of them out");
    full = keys.inside("rope_scaling");
    if (full.has("type") && !full.has("rope_type"))
      full.refuse("type", "transformers passes it over in this family; write rope_type");
  }
  config.rope = parse_rope(keys, full, config, {"rope_theta", 1'000'000, false});
  config.window_rope =
      parse_rope(keys, of_type(kSlidingAttention), config, {"rope_local_base_freq", 10000, false});
  set_stretched(full, config, config.rope);
}

const Json& gemma4_rope_parameters() {
  static const Json silent = {
      {kFullAttention, {{"rope_type", "proportional"}, {kTurningShare, 0.25}, {"rope_theta", 1'000'000.0}}},
      {kSlidingAttention, {{"rope_type", "default"}, {"rope_theta", 10'000.0}}}};
  return silent;
}

}  // namespace trireme
