// An encoder layer's halves (layer_halves.h), as BERT has them (arXiv 1810.04805): norms after each, biases
// everywhere, no rotary.
//
//   attention_input    x_TM -> q|k|v projection -> qkv_TND
//   attention_output   x_TM, o -> out projection + x = x1 -> layer norm = a -> up -> GELU -> down + a = x2
//                      -> layer norm = y_TM
//
// Kept of attention_output: x1; up's output [T, I] before the GELU, and x2 [T, M] behind it in the tile's
// memory: the second norm's backward needs its input, and no other matmul gives it. Without them backward
// runs the out projection, up and down once more.
#pragma once

#include "trireme/model/layer_halves.h"

namespace trireme::encoder_layer {

void attention_input_forward(const LayerTensors& layer, const at::Tensor& x_TM, const at::Tensor& qkv_TND);
void attention_input_backward(const LayerTensors& layer, LayerWeights& gradients, const at::Tensor& x_TM,
                              const at::Tensor& dqkv_TND, const at::Tensor& dx_TM);
void attention_output_forward(const LayerTensors& layer, const at::Tensor& x_TM, const at::Tensor& o_TA,
                              const at::Tensor& y_TM, AttentionOutputKept* kept);
void attention_output_backward(const LayerTensors& layer, LayerWeights& gradients, const at::Tensor& x_TM,
                               const at::Tensor& o_TA, const at::Tensor& dy_TM, AttentionOutputKept* kept,
                               const at::Tensor& dx_TM, at::Tensor do_TA);

}  // namespace trireme::encoder_layer
