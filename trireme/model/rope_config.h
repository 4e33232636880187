// The rotary part of a config.json, in both of its forms: `rope_parameters`, and the older `rope_scaling`
// beside `rope_theta`. Keys and their precedence are those of transformers 5.
#pragma once

#include "trireme/model/config_keys.h"
#include "trireme/model/model_config.h"

namespace trireme {

inline constexpr const char* kOriginalPositions = "original_max_position_embeddings";
inline constexpr const char* kQueryScalingBeta = "llama_4_scaling_beta";
inline constexpr const char* kTurningShare = "partial_rotary_factor";
// Types of layers.
inline constexpr const char* kFullAttention = "full_attention";
inline constexpr const char* kSlidingAttention = "sliding_attention";
inline constexpr const char* kLinearAttention = "linear_attention";

// The key of the rope dictionary that is read: the older one where it is filled.
const char* rope_key(const Json& config);

// What is read inside the rope dictionary.
std::vector<std::string> rope_keys();

// `config` must already hold head_dim and max_position_embeddings. ConfigError: an unknown kind, a missing or
// nonsensical value, parameters of types of layers.
struct RopeOfFamily {
  double silent_theta = 10000;  // where the file says none
  bool scales_queries = false;  // it must say how
  // Of each head's values, of a family that may turn a part of them: where the file is silent.
  std::optional<double> silent_turning_share = {};
};
RopeConfig parse_rope_config(const ConfigKeys& keys, const ModelConfig& config, const RopeOfFamily& family);

// The same of a model whose sliding layers have another one (Gemma 3): `rope_parameters` then has an object
// for each type of layer. In the older form `rope_scaling` and `rope_theta` are of layers of full attention,
// `rope_local_base_freq` of those that slide. `each_says_all`: of a model that reads `rope_parameters` alone
// (Gemma 4).
void read_layer_ropes(const ConfigKeys& keys, bool each_says_all, ModelConfig& config);
// What Gemma 4 has where its file says nothing.
const Json& gemma4_rope_parameters();

}  // namespace trireme
