// The kinds of decoders that Llama's family has, Llama first.
#pragma once

#include <span>

#include "trireme/model/decoder_config.h"

namespace trireme::decoder {

std::span<const DecoderKind> decoder_kinds();

}  // namespace trireme::decoder
