// Bytes inside one tile of T tokens of each of a layer's token-wise parts, forward and backward, of the head and
// of layers' inputs: written after the families of trireme/model and kernels/token_ops_encoder.cpp. The
// embedding's tiles are never the fullest.
#pragma once

#include "trireme/forecast/forecast_inputs.h"

namespace trireme {

struct TileBytes {
  int64_t before_attention_forward = 0;
  int64_t before_attention_backward = 0;
  int64_t after_attention_forward = 0;
  int64_t after_attention_forward_kept = 0;   // gate|up is made where it is kept
  int64_t after_attention_backward = 0;       // what it reads is made again
  int64_t after_attention_backward_kept = 0;  // or was kept
  int64_t head = 0;
  int64_t layer_inputs_forward = 0;  // 0: the model has none
  int64_t layer_inputs_backward = 0;
};
// By the formula of the model's family. Of one kind of layers (layer_kinds.h).
TileBytes tile_bytes(const ForecastInputs& inputs);

}  // namespace trireme
