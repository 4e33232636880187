// Bytes inside one tile of T tokens of each of a layer's halves, forward and backward, and of the head:
// written after model/decoder_layer.cpp, model/encoder_layer.cpp, model/token_ops_encoder.cpp and
// model/head.cpp. The embedding's tiles are never the fullest. Like all byte formulas arithmetic alone,
// without torch.
#pragma once

#include <cstdint>

#include "trireme/engine/memory_bytes.h"

namespace trireme {

struct TileBytes {
  int64_t input_forward = 0;
  int64_t input_backward = 0;
  int64_t output_forward = 0;
  int64_t output_backward = 0;       // what it reads is made again
  int64_t output_backward_kept = 0;  // or was kept
  int64_t head = 0;
};
TileBytes tile_bytes(const MemoryShape& shape);

}  // namespace trireme
