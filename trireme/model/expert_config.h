// What the config.json of a mixture of experts says of them.
#pragma once

#include "trireme/model/decoder_config.h"

namespace trireme {

// `kind` has experts; `config` has the number of its layers.
void read_experts(const ConfigKeys& keys, const DecoderKind& kind, ModelConfig& config);

}  // namespace trireme
