// The rotary part of a config.json, in both of its forms: `rope_parameters`, and the older `rope_scaling`
// beside `rope_theta`. Keys and their precedence are those of transformers 5.
#pragma once

#include "trireme/model/config_keys.h"
#include "trireme/model/model_config.h"

namespace trireme {

// `config` must already hold head_dim and max_position_embeddings. ConfigError: an unknown kind, a missing or
// nonsensical value, parameters that differ from layer type to layer type.
RopeConfig parse_rope_config(const ConfigKeys& keys, const ModelConfig& config);

}  // namespace trireme
