#include "trireme/model/decoder_layer.h"

#include "trireme/model/linear.h"
#include "trireme/model/token_ops.h"

namespace trireme::decoder_layer {
namespace {

RotaryHeads rotary_heads(const LayerTensors& layer, int64_t first_row) {
  const ModelConfig& config = *layer.config;
  RotaryHeads rotary;
  rotary.query_heads = config.num_attention_heads;
  rotary.rotated_heads = config.num_attention_heads + config.num_key_value_heads;
  rotary.cos = layer.rotary.cos;
  rotary.sin = layer.rotary.sin;
  rotary.first_row = first_row;
  rotary.q_norm = layer.weights.q_norm;
  rotary.k_norm = layer.weights.k_norm;
  rotary.norm_eps = config.rms_norm_eps;
  return rotary;
}

at::ScalarType tile_dtype(const LayerTensors& layer) {
  return layer.weights.qkv.scalar_type();
}

// x + o Wo', in the tile dtype.
at::Tensor residual_after_attention(const LayerTensors& layer, const at::Tensor& x_TM,
                                    const at::Tensor& o_tile) {
  const auto& w = layer.weights;
  at::Tensor x1 = at::addmm(x_TM.to(o_tile.scalar_type()), o_tile, w.o.t());
  if (w.o_bias.defined()) x1.add_(w.o_bias);
  return x1;
}

}  // namespace

void attention_input_forward(const LayerTensors& layer, const at::Tensor& x_TM, int64_t first_row,
                             const at::Tensor& qkv_TND) {
  const auto& w = layer.weights;
  const auto dtype = tile_dtype(layer);
  const at::Tensor normed = rms_norm(x_TM, w.input_norm, layer.config->rms_norm_eps, dtype);
  const bool in_place = qkv_TND.scalar_type() == dtype;
  at::Tensor projected = in_place ? qkv_TND : at::empty(qkv_TND.sizes(), qkv_TND.options().dtype(dtype));
  at::Tensor flat = projected.view({projected.size(0), -1});
  linear_into(flat, normed, w.qkv, w.qkv_bias);
  rotate_heads(projected, rotary_heads(layer, first_row), qkv_TND);
}

void attention_input_backward(const LayerTensors& layer, LayerWeights& gradients, const at::Tensor& x_TM,
                              int64_t first_row, const at::Tensor& dqkv_TND, at::Tensor dx_TM) {
  const auto& w = layer.weights;
  const auto dtype = tile_dtype(layer);
  const RotaryHeads rotary = rotary_heads(layer, first_row);
  const at::Tensor normed = rms_norm(x_TM, w.input_norm, layer.config->rms_norm_eps, dtype);
  at::Tensor before;
  if (w.q_norm.defined()) {
    const int64_t rows = rotary.rotated_heads * layer.config->head_dim;
    const at::Tensor bias = w.qkv_bias.defined() ? w.qkv_bias.narrow(0, 0, rows) : w.qkv_bias;
    before = linear_forward(normed, w.qkv.narrow(0, 0, rows), bias)
                 .view({x_TM.size(0), rotary.rotated_heads, layer.config->head_dim});
  }
  const bool in_place = dqkv_TND.scalar_type() == dtype;
  const at::Tensor projected =
      in_place ? dqkv_TND : at::empty(dqkv_TND.sizes(), dqkv_TND.options().dtype(dtype));
  rotate_heads_backward(dqkv_TND, rotary, before, projected, gradients.q_norm, gradients.k_norm);
  const at::Tensor flat = projected.view({projected.size(0), -1});
  add_linear_gradient(gradients.qkv, gradients.qkv_bias, flat, normed);
  const at::Tensor dnormed = at::mm(flat, w.qkv);
  rms_norm_backward(dnormed, x_TM, w.input_norm, layer.config->rms_norm_eps, dx_TM, gradients.input_norm);
}

void attention_output_forward(const LayerTensors& layer, const at::Tensor& x_TM, const at::Tensor& o_TA,
                              const at::Tensor& y_TM, AttentionOutputKept* kept) {
  const auto& w = layer.weights;
  const auto dtype = tile_dtype(layer);
  at::Tensor x1 = residual_after_attention(layer, x_TM, o_TA.to(dtype));
  const at::Tensor normed = rms_norm(x1, w.post_norm, layer.config->rms_norm_eps, dtype);
  const at::Tensor gate_up = linear_forward(normed, w.gate_up, w.gate_up_bias);
  const at::Tensor act = swiglu(gate_up);
  if (kept != nullptr) {
    kept->x1.copy_(x1);
    kept->mlp.copy_(gate_up);
  }
  x1.addmm_(act, w.down.t());
  if (w.down_bias.defined()) x1.add_(w.down_bias);
  y_TM.copy_(x1);
}

void attention_output_backward(const LayerTensors& layer, LayerWeights& gradients, const at::Tensor& x_TM,
                               const at::Tensor& o_TA, const at::Tensor& dy_TM, AttentionOutputKept* kept,
                               const at::Tensor& dx_TM, at::Tensor do_TA) {
  const auto& w = layer.weights;
  const auto dtype = tile_dtype(layer);
  const double eps = layer.config->rms_norm_eps;
  const at::Tensor o = o_TA.to(dtype), dy = dy_TM.to(dtype);
  const at::Tensor x1 = kept != nullptr ? kept->x1 : residual_after_attention(layer, x_TM, o);
  const at::Tensor normed = rms_norm(x1, w.post_norm, eps, dtype);
  at::Tensor gate_up =
      kept != nullptr ? kept->mlp.to(dtype) : linear_forward(normed, w.gate_up, w.gate_up_bias);
  const at::Tensor dact = at::mm(dy, w.down);
  const at::Tensor act = swiglu_backward(dact, gate_up);  // gate_up is d(gate_up) from here on
  add_linear_gradient(gradients.down, gradients.down_bias, dy, act);
  add_linear_gradient(gradients.gate_up, gradients.gate_up_bias, gate_up, normed);
  const at::Tensor dnormed = at::mm(gate_up, w.gate_up);
  at::Tensor dx1 = dy.clone();
  rms_norm_backward(dnormed, x1, w.post_norm, eps, dx1, gradients.post_norm);
  add_linear_gradient(gradients.o, gradients.o_bias, dx1, o);
  if (do_TA.scalar_type() == dtype)
    at::mm_out(do_TA, dx1, w.o);
  else
    do_TA.copy_(at::mm(dx1, w.o));
  dx_TM.copy_(dx1);
}

}  // namespace trireme::decoder_layer
