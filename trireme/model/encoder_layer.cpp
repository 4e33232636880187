#include "trireme/model/encoder_layer.h"

#include "trireme/model/linear.h"
#include "trireme/model/token_ops.h"

namespace trireme::encoder_layer {
namespace {

at::ScalarType tile_dtype(const LayerTensors& layer) {
  return layer.weights.qkv.scalar_type();
}

// o Wo' + b + x, in the tile dtype.
at::Tensor residual_after_attention(const LayerTensors& layer, const at::Tensor& x_TM,
                                    const at::Tensor& o_tile) {
  at::Tensor x1 = at::addmm(x_TM.to(o_tile.scalar_type()), o_tile, layer.weights.o.t());
  return x1.add_(layer.weights.o_bias);
}

// act Wd' + b + a, over a.
at::Tensor residual_after_mlp(const LayerTensors& layer, const at::Tensor& a_TM, const at::Tensor& act_TI) {
  return a_TM.addmm_(act_TI, layer.weights.down.t()).add_(layer.weights.down_bias);
}

// One after the other in the tile's memory, each contiguous: kernels then see what they see without keeping,
// and results have the same bits.
struct KeptMlp {
  at::Tensor up;  // [T, I]
  at::Tensor x2;  // [T, M]
};
KeptMlp kept_mlp(const LayerTensors& layer, const at::Tensor& kept) {
  const int64_t T = kept.size(0), I = layer.weights.up.size(0), M = layer.weights.up.size(1);
  const at::Tensor flat = kept.view({-1});
  return {flat.narrow(0, 0, T * I).view({T, I}), flat.narrow(0, T * I, T * M).view({T, M})};
}

}  // namespace

void attention_input_forward(const LayerTensors& layer, const at::Tensor& x_TM, const at::Tensor& qkv_TND) {
  const auto& w = layer.weights;
  const auto dtype = tile_dtype(layer);
  const bool in_place = qkv_TND.scalar_type() == dtype;
  const at::Tensor projected =
      in_place ? qkv_TND : at::empty(qkv_TND.sizes(), qkv_TND.options().dtype(dtype));
  at::Tensor flat = projected.view({projected.size(0), -1});
  linear_into(flat, x_TM.to(dtype), w.qkv, w.qkv_bias);
  if (!in_place) qkv_TND.copy_(projected);
}

void attention_input_backward(const LayerTensors& layer, LayerWeights& gradients, const at::Tensor& x_TM,
                              const at::Tensor& dqkv_TND, const at::Tensor& dx_TM) {
  const auto& w = layer.weights;
  const auto dtype = tile_dtype(layer);
  const at::Tensor dqkv = dqkv_TND.to(dtype).flatten(1);
  add_linear_gradient(gradients.qkv, gradients.qkv_bias, dqkv, x_TM.to(dtype));
  if (dx_TM.scalar_type() == dtype)
    dx_TM.addmm_(dqkv, w.qkv);
  else
    dx_TM.add_(at::mm(dqkv, w.qkv));
}

void attention_output_forward(const LayerTensors& layer, const at::Tensor& x_TM, const at::Tensor& o_TA,
                              const at::Tensor& y_TM, AttentionOutputKept* kept) {
  const auto& w = layer.weights;
  const auto dtype = tile_dtype(layer);
  const double eps = layer.config->layer_norm_eps;
  at::Tensor x1 = residual_after_attention(layer, x_TM, o_TA.to(dtype));
  const at::Tensor a = layer_norm(x1, w.attention_norm, w.attention_norm_bias, eps, dtype);
  if (kept != nullptr) kept->x1.copy_(x1);
  x1 = at::Tensor();
  const at::Tensor up = linear_forward(a, w.up, w.up_bias);
  const at::Tensor x2 = residual_after_mlp(layer, a, exact_gelu(up));
  if (kept != nullptr) {
    const KeptMlp mlp = kept_mlp(layer, kept->mlp);
    mlp.up.copy_(up);
    mlp.x2.copy_(x2);
  }
  y_TM.copy_(layer_norm(x2, w.output_norm, w.output_norm_bias, eps, y_TM.scalar_type()));
}

void attention_output_backward(const LayerTensors& layer, LayerWeights& gradients, const at::Tensor& x_TM,
                               const at::Tensor& o_TA, const at::Tensor& dy_TM, AttentionOutputKept* kept,
                               const at::Tensor& dx_TM, at::Tensor do_TA) {
  const auto& w = layer.weights;
  const auto dtype = tile_dtype(layer);
  const double eps = layer.config->layer_norm_eps;
  const at::Tensor o = o_TA.to(dtype);
  const at::Tensor x1 = kept != nullptr ? kept->x1 : residual_after_attention(layer, x_TM, o);
  const at::Tensor a = layer_norm(x1, w.attention_norm, w.attention_norm_bias, eps, dtype);
  at::Tensor up, x2;
  if (kept != nullptr) {
    const KeptMlp mlp = kept_mlp(layer, kept->mlp);
    up = mlp.up;
    x2 = mlp.x2;
  } else {
    up = linear_forward(a, w.up, w.up_bias);
    x2 = residual_after_mlp(layer, a.clone(), exact_gelu(up));
  }
  at::Tensor dx2 = layer_norm_backward(dy_TM, x2, w.output_norm, eps, dtype, gradients.output_norm,
                                       gradients.output_norm_bias);
  x2 = at::Tensor();
  at::Tensor dup = at::mm(dx2, w.down);
  exact_gelu_backward(dup, up);  // dup was d(act); up is act from here on
  add_linear_gradient(gradients.down, gradients.down_bias, dx2, up);
  add_linear_gradient(gradients.up, gradients.up_bias, dup, a);
  const at::Tensor da = dx2.addmm_(dup, w.up);
  up = dup = at::Tensor();
  const at::Tensor dx1 = layer_norm_backward(da, x1, w.attention_norm, eps, dtype, gradients.attention_norm,
                                             gradients.attention_norm_bias);
  add_linear_gradient(gradients.o, gradients.o_bias, dx1, o);
  if (do_TA.scalar_type() == dtype)
    at::mm_out(do_TA, dx1, w.o);
  else
    do_TA.copy_(at::mm(dx1, w.o));
  dx_TM.copy_(dx1);
}

}  // namespace trireme::encoder_layer
