// The arithmetic of decoders: decoder_layer.cpp.
#pragma once

#include <memory>

#include "trireme/model/head.h"
#include "trireme/model/layer.h"
#include "trireme/model/model_config.h"

namespace trireme::decoder {

// They refer to `config`.
std::unique_ptr<Layer> make_layer(const ModelConfig& config);
std::unique_ptr<Head> make_head(const ModelConfig& config);

// Values a token that a layer's MLP keeps for its backward: ModelConfig::mlp_kept_width.
int64_t mlp_kept_width(const ModelConfig& config);

}  // namespace trireme::decoder
