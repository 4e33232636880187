// A decoder's layer and head: RMS norms before each part, rotary positions, an MLP (decoder_mlp.h).
//
//   before attention   x_TM -> norm -> q|k|v projection -> (q/k norm) -> rotary -> (q x scale) -> qkv_TND
//   after attention    o -> out projection = a -> (norm) + x = x1 -> norm -> MLP + x1 = y_TM
//   head               x_TM -> norm -> matrix -> logits_TV
//
// Kept after attention: x1, and what the MLP keeps. Backward runs the out projection once more (or takes x1).
// With a norm of a (Gemma 3, arXiv 2503.19786) backward reads a, and no other product gives it: a is kept in
// place of x1.
#include "trireme/model/families/decoder_layer.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/kernels/token_ops.h"
#include "trireme/model/adapted_linear.h"
#include "trireme/model/families/decoder_mlp.h"
#include "trireme/model/families/decoder_norm.h"
#include "trireme/model/families/decoder_units.h"

namespace trireme::decoder {
namespace {

// x + o Wo', in the tile dtype.
at::Tensor residual_after_attention(const UnitWeights& w, const at::Tensor& x_TM, const at::Tensor& o_tile) {
  at::Tensor x1 = x_TM.to(o_tile.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  add_adapted_linear(x1, o_tile, w, kOut, kOutBias);
  return x1;
}

class DecoderLayer final : public Layer {
 public:
  explicit DecoderLayer(const ModelConfig& config)
      : config_(config), mlp_(config.num_experts > 0 ? make_expert_mlp(config) : make_gated_mlp(config)) {
    TRIREME_ASSERT(!(config.rope.query_scaling && config.qk_norm),
                   "a norm's gradient would miss the scale of queries");
  }

  void before_attention_forward(const LayerTensors& layer, const at::Tensor& x_TM, int64_t first_row,
                                const at::Tensor& qkv_TND) const override {
    const UnitWeights& w = layer.weights;
    const auto dtype = w[kQkv].scalar_type();
    const at::Tensor normed = norm(config_, x_TM, w[kAttentionNorm], dtype);
    const bool in_place = qkv_TND.scalar_type() == dtype;
    at::Tensor projected = in_place ? qkv_TND : at::empty(qkv_TND.sizes(), qkv_TND.options().dtype(dtype));
    at::Tensor flat = projected.view({projected.size(0), -1});
    adapted_linear_into(flat, normed, w, kQkv, kQkvBias);
    rotate_heads(projected, rotary_heads(layer, first_row), qkv_TND);
    scale_queries(layer.rotary.query_scale, first_row, qkv_TND);
  }

  void before_attention_backward(const LayerTensors& layer, UnitGradients& gradients, const at::Tensor& x_TM,
                                 int64_t first_row, const at::Tensor& dqkv_TND,
                                 at::Tensor dx_TM) const override {
    const UnitWeights& w = layer.weights;
    const auto dtype = w[kQkv].scalar_type();
    const RotaryHeads rotary = rotary_heads(layer, first_row);
    const at::Tensor normed = norm(config_, x_TM, w[kAttentionNorm], dtype);
    at::Tensor before;
    if (w[kQueryNorm].defined()) {
      const int64_t rows = rotary.rotated_heads * config_.head_dim;
      before = adapted_linear_of_rows(normed, w, kQkv, kQkvBias, rows)
                   .view({x_TM.size(0), rotary.rotated_heads, config_.head_dim});
    }
    const bool in_place = dqkv_TND.scalar_type() == dtype;
    const at::Tensor projected =
        in_place ? dqkv_TND : at::empty(dqkv_TND.sizes(), dqkv_TND.options().dtype(dtype));
    rotate_heads_backward(dqkv_TND, rotary, before, projected, gradients.to_add(kQueryNorm),
                          gradients.to_add(kKeyNorm));
    // The scale of a token's queries passes through their rotation.
    scale_queries(layer.rotary.query_scale, first_row, projected);
    const at::Tensor flat = projected.view({projected.size(0), -1});
    add_adapted_linear_gradients(gradients, w, kQkv, kQkvBias, flat, normed);
    norm_backward(config_, adapted_linear_backward(flat, w, kQkv), x_TM, w[kAttentionNorm], dx_TM,
                  gradients.to_add(kAttentionNorm));
  }

  void after_attention_forward(const LayerTensors& layer, const at::Tensor& x_TM, const at::Tensor& o_TA,
                               const at::Tensor& y_TM, KeptAfterAttention* kept) const override {
    const UnitWeights& w = layer.weights;
    const auto dtype = w[kQkv].scalar_type();
    auto [a, x1] = first_residual(w, x_TM, o_TA.to(dtype));
    if (kept != nullptr) kept->x1.copy_(a.defined() ? a : x1);
    a = at::Tensor();
    mlp_->forward(w, norm(config_, x1, w[kMlpNorm], dtype), kept != nullptr ? kept->mlp : at::Tensor(), x1);
    y_TM.copy_(x1);
  }

  void after_attention_backward(const LayerTensors& layer, UnitGradients& gradients, const at::Tensor& x_TM,
                                const at::Tensor& o_TA, const at::Tensor& dy_TM, KeptAfterAttention* kept,
                                const at::Tensor& dx_TM, at::Tensor do_TA) const override {
    const UnitWeights& w = layer.weights;
    const auto dtype = w[kQkv].scalar_type();
    const bool post_norms = w[kAttentionOutNorm].defined();
    const at::Tensor o = o_TA.to(dtype), dy = dy_TM.to(dtype);
    at::Tensor a, x1;
    if (kept == nullptr)
      std::tie(a, x1) = first_residual(w, x_TM, o);
    else if (post_norms)
      x1 = add_normed(w, x_TM, a = kept->x1);
    else
      x1 = kept->x1;
    const at::Tensor dnormed = mlp_->backward(w, gradients, norm(config_, x1, w[kMlpNorm], dtype), dy,
                                              kept != nullptr ? kept->mlp : at::Tensor());
    at::Tensor dx1 = dy.clone();
    norm_backward(config_, dnormed, x1, w[kMlpNorm], dx1, gradients.to_add(kMlpNorm));
    at::Tensor da = dx1;
    if (post_norms) {
      da = at::zeros_like(dx1);
      norm_backward(config_, dx1, a, w[kAttentionOutNorm], da, gradients.to_add(kAttentionOutNorm));
    }
    add_adapted_linear_gradients(gradients, w, kOut, kOutBias, da, o);
    adapted_linear_backward_into(do_TA, da, w, kOut);
    dx_TM.copy_(dx1);
  }

 private:
  // Rows are as in RotaryHeads.
  void scale_queries(const at::Tensor& scale, int64_t first_row, const at::Tensor& qkv_TND) const {
    if (!scale.defined()) return;
    const int64_t tokens = qkv_TND.size(0), rows = scale.size(0);
    for (int64_t done = 0, count = 0; done < tokens; done += count) {
      const int64_t row = (first_row + done) % rows;
      count = std::min(tokens - done, rows - row);
      const at::Tensor factors = scale.narrow(0, row, count).to(qkv_TND.scalar_type()).view({count, 1, 1});
      qkv_TND.narrow(0, done, count).narrow(1, 0, config_.num_attention_heads).mul_(factors);
    }
  }

  // a, where there is a norm of it, and x1: both in the tile dtype.
  std::pair<at::Tensor, at::Tensor> first_residual(const UnitWeights& w, const at::Tensor& x_TM,
                                                   const at::Tensor& o_tile) const {
    if (!w[kAttentionOutNorm].defined()) return {{}, residual_after_attention(w, x_TM, o_tile)};
    const at::Tensor a = adapted_linear(o_tile, w, kOut, kOutBias);
    return {a, add_normed(w, x_TM, a)};
  }
  // x + norm(a)
  at::Tensor add_normed(const UnitWeights& w, const at::Tensor& x_TM, const at::Tensor& a_TM) const {
    return norm(config_, a_TM, w[kAttentionOutNorm], a_TM.scalar_type()).add_(x_TM);
  }

  RotaryHeads rotary_heads(const LayerTensors& layer, int64_t first_row) const {
    RotaryHeads rotary;
    rotary.query_heads = config_.num_attention_heads;
    rotary.rotated_heads = config_.num_attention_heads + config_.num_key_value_heads;
    rotary.cos = layer.rotary.cos;
    rotary.sin = layer.rotary.sin;
    rotary.first_row = first_row;
    rotary.q_norm = norm_factor(config_, layer.weights[kQueryNorm]);
    rotary.k_norm = norm_factor(config_, layer.weights[kKeyNorm]);
    rotary.norm_eps = config_.norm_eps;
    return rotary;
  }

  const ModelConfig& config_;
  std::unique_ptr<const DecoderMlp> mlp_;
};

class DecoderHead final : public Head {
 public:
  explicit DecoderHead(const ModelConfig& config) : config_(config) {}

 protected:
  Tile before_matrix(const UnitWeights& w, const at::Tensor& x_TM) const override {
    return {norm(config_, x_TM, w[kFinalNorm], w[kOutputMatrix].scalar_type()), {}};
  }
  at::Tensor before_matrix_backward(const UnitWeights& w, UnitGradients& gradients, const at::Tensor& x_TM,
                                    Tile&, const at::Tensor& dnormed) const override {
    at::Tensor dx = at::zeros(x_TM.sizes(), dnormed.options());
    norm_backward(config_, dnormed, x_TM, w[kFinalNorm], dx, gradients.to_add(kFinalNorm));
    return dx;
  }

 private:
  const ModelConfig& config_;
};

}  // namespace

std::unique_ptr<Layer> make_layer(const ModelConfig& config) {
  return std::make_unique<DecoderLayer>(config);
}
std::unique_ptr<Head> make_head(const ModelConfig& config) {
  return std::make_unique<DecoderHead>(config);
}

int64_t mlp_kept_width(const ModelConfig& config) {
  return config.num_experts > 0 ? expert_mlp_kept_width(config) : gated_mlp_kept_width(config);
}

}  // namespace trireme::decoder
