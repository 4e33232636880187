// A decoder layer's halves (layer_halves.h), norms before each:
//
//   attention_input    x_TM -> RMS norm -> q|k|v projection -> (q/k norm) -> rotary -> qkv_TND
//   attention_output   x_TM, o -> out projection + x = x1 -> RMS norm -> gate|up -> SwiGLU -> down + x1 = y_TM
//
// Kept of attention_output: x1, and gate|up [T, 2 I]. Backward runs the out projection and gate|up once more
// (or takes what was kept), never the down projection.
#pragma once

#include "trireme/model/layer_halves.h"

namespace trireme::decoder_layer {

void attention_input_forward(const LayerTensors& layer, const at::Tensor& x_TM, int64_t first_row,
                             const at::Tensor& qkv_TND);
void attention_input_backward(const LayerTensors& layer, LayerWeights& gradients, const at::Tensor& x_TM,
                              int64_t first_row, const at::Tensor& dqkv_TND, at::Tensor dx_TM);
void attention_output_forward(const LayerTensors& layer, const at::Tensor& x_TM, const at::Tensor& o_TA,
                              const at::Tensor& y_TM, AttentionOutputKept* kept);
void attention_output_backward(const LayerTensors& layer, LayerWeights& gradients, const at::Tensor& x_TM,
                               const at::Tensor& o_TA, const at::Tensor& dy_TM, AttentionOutputKept* kept,
                               const at::Tensor& dx_TM, at::Tensor do_TA);

}  // namespace trireme::decoder_layer
