#include "trireme/model/layer_halves.h"

#include "trireme/model/decoder_layer.h"
#include "trireme/model/encoder_layer.h"

namespace trireme {
namespace {

bool encodes(const LayerTensors& layer) {
  return layer.config->family == ModelFamily::bert;
}

}  // namespace

void attention_input_forward(const LayerTensors& layer, const at::Tensor& x_TM, int64_t first_row,
                             const at::Tensor& qkv_TND) {
  if (encodes(layer)) return encoder_layer::attention_input_forward(layer, x_TM, qkv_TND);
  decoder_layer::attention_input_forward(layer, x_TM, first_row, qkv_TND);
}

void attention_input_backward(const LayerTensors& layer, LayerWeights& gradients, const at::Tensor& x_TM,
                              int64_t first_row, const at::Tensor& dqkv_TND, const at::Tensor& dx_TM) {
  if (encodes(layer)) return encoder_layer::attention_input_backward(layer, gradients, x_TM, dqkv_TND, dx_TM);
  decoder_layer::attention_input_backward(layer, gradients, x_TM, first_row, dqkv_TND, dx_TM);
}

void attention_output_forward(const LayerTensors& layer, const at::Tensor& x_TM, const at::Tensor& o_TA,
                              const at::Tensor& y_TM, AttentionOutputKept* kept) {
  if (encodes(layer)) return encoder_layer::attention_output_forward(layer, x_TM, o_TA, y_TM, kept);
  decoder_layer::attention_output_forward(layer, x_TM, o_TA, y_TM, kept);
}

void attention_output_backward(const LayerTensors& layer, LayerWeights& gradients, const at::Tensor& x_TM,
                               const at::Tensor& o_TA, const at::Tensor& dy_TM, AttentionOutputKept* kept,
                               const at::Tensor& dx_TM, const at::Tensor& do_TA) {
  if (encodes(layer))
    return encoder_layer::attention_output_backward(layer, gradients, x_TM, o_TA, dy_TM, kept, dx_TM, do_TA);
  decoder_layer::attention_output_backward(layer, gradients, x_TM, o_TA, dy_TM, kept, dx_TM, do_TA);
}

}  // namespace trireme
