// What the config.json of a Gemma 4 has that other decoders' have not: heads of its own for layers with full
// attention, keys and values that layers share, what each layer is told of its token.
#pragma once

#include "trireme/model/config_keys.h"
#include "trireme/model/model_config.h"

namespace trireme {

// `config`: as parse_decoder_config (decoder_config.h) filled it with what all have.
void read_gemma4(const ConfigKeys& keys, ModelConfig& config);

}  // namespace trireme
