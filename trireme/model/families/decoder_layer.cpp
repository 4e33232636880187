// A decoder's layer and head: RMS norms before each part, rotary positions, an MLP (decoder_mlp.h).
//
//   before attention   x_TM -> norm -> q|k|v projection -> (q/k norm) -> rotary -> (q x scale) -> qkv_TND
//                      or -> the projections of a DeltaNet (delta_net_mixing.h)
//   after attention    o -> (gate, output_gate.h) -> out projection = a -> (norm) + x = x1 -> norm -> MLP + x1 -> (layer
//                      input, layer_input.h) -> y_TM
//   head               x_TM -> norm -> matrix -> logits_TV
//
// Kept after attention: x1, and what the MLP keeps. Backward runs the out projection once more (or takes x1).
// With a norm of a (Gemma 3, arXiv 2503.19786) backward reads a, and no other product gives it: a is kept in
// place of x1. With a layer input what it is added to is kept behind what the MLP keeps; without, the MLP's products
// run once more for it and keep what its backward then reads.
#include "trireme/model/families/decoder_layer.h"

#include <algorithm>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/kernels/token_ops.h"
#include "trireme/model/adapted_linear.h"
#include "trireme/model/families/decoder_mlp.h"
#include "trireme/model/families/decoder_norm.h"
#include "trireme/model/families/decoder_units.h"
#include "trireme/model/families/delta_net_projection.h"
#include "trireme/model/families/layer_input.h"
#include "trireme/model/families/output_gate.h"
#include "trireme/model/kept_parts.h"

namespace trireme::decoder {
namespace {

std::unique_ptr<DecoderMlp> make_mlp(const ModelConfig& config) {
  if (config.experts_beside_mlp) return make_experts_beside_mlp(config);
  return config.num_experts > 0 ? make_expert_mlp(config) : make_gated_mlp(config);
}

class DecoderLayer final : public Layer {
 public:
  explicit DecoderLayer(const ModelConfig& config) : config_(config), mlp_(make_mlp(config)) {
    TRIREME_ASSERT(!(config.rope.query_scaling && config.qk_norm),
                   "a norm's gradient would miss the scale of queries");
  }

  void before_attention_forward(const LayerTensors& layer, const at::Tensor& x_TM, int64_t first_row,
                                const at::Tensor& qkv_TND, const at::Tensor& gate_TA) const override {
    const UnitWeights& w = layer.weights;
    const auto dtype = w[kQkv].scalar_type();
    const at::Tensor normed = norm(config_, x_TM, w[kAttentionNorm], dtype);
    if (layer.delta_net != nullptr) {
      part_projection(*layer.delta_net, adapted_linear(normed, w, kQkv, kQkvBias), qkv_TND.squeeze(1),
                      gate_TA);
      return;
    }
    const at::Tensor projected = projection(layer.heads, qkv_TND, dtype);
    at::Tensor flat = projected.view({projected.size(0), -1});
    if (layer.heads.gated)
      part_gates(layer.heads,
                 adapted_linear(normed, w, kQkv, kQkvBias).view({x_TM.size(0), -1, layer.heads.width}),
                 projected, gate_TA);
    else
      adapted_linear_into(flat, normed, w, kQkv, kQkvBias);
    const RotaryHeads rotary = rotary_heads(layer, first_row);
    // Before keys that are values turn.
    if (config_.v_norm && !layer.heads.share_keys) norm_values(layer.heads, projected, qkv_TND);
    rotate_heads(turned(rotary, projected), rotary, turned(rotary, qkv_TND));
    if (layer.heads.share_keys)
      qkv_TND.narrow(1, layer.heads.query, 2 * layer.heads.key_value)
          .copy_(layer.shared_kv_RKD.narrow(0, first_row, x_TM.size(0)));
    scale_queries(layer.rotary.query_scale, first_row, qkv_TND);
  }

  void before_attention_backward(const LayerTensors& layer, UnitGradients& gradients, const at::Tensor& x_TM,
                                 int64_t first_row, const at::Tensor& dqkv_TND, const at::Tensor& dgate_TA,
                                 at::Tensor dx_TM) const override {
    const UnitWeights& w = layer.weights;
    const auto dtype = w[kQkv].scalar_type();
    const at::Tensor normed = norm(config_, x_TM, w[kAttentionNorm], dtype);
    if (layer.delta_net != nullptr) {
      const at::Tensor dprojected = at::empty({x_TM.size(0), w[kQkv].size(0)}, normed.options());
      join_projection(*layer.delta_net, dqkv_TND.squeeze(1), dgate_TA, dprojected);
      return projection_backward(w, gradients, x_TM, normed, dprojected, dx_TM);
    }
    const RotaryHeads rotary = rotary_heads(layer, first_row);
    at::Tensor before;
    if (w[kQueryNorm].defined()) {
      const int64_t width = layer.heads.width;
      const int64_t rows =
          config_.v_norm ? w[kQkv].size(0) : rotary.rotated_heads * width + layer.heads.gate_width();
      before = adapted_linear_of_rows(normed, w, kQkv, kQkvBias, rows).view({x_TM.size(0), -1, width});
      if (layer.heads.gated) before = without_gates(layer.heads, before);
    }
    const at::Tensor projected = projection(layer.heads, dqkv_TND, dtype);
    at::Tensor& dq_norm = gradients.to_add(kQueryNorm);
    at::Tensor no_keys = layer.heads.share_keys ? at::zeros_like(dq_norm) : at::Tensor();
    rotate_heads_backward(turned(rotary, dqkv_TND), rotary, before, turned(rotary, projected), dq_norm,
                          layer.heads.share_keys ? no_keys : gradients.to_add(kKeyNorm));
    if (config_.v_norm && !layer.heads.share_keys)
      norm_values_backward(layer.heads, dqkv_TND, before, projected);
    before = at::Tensor();
    // The scale of a token's queries passes through their rotation.
    scale_queries(layer.rotary.query_scale, first_row, projected);
    const at::Tensor flat = layer.heads.gated ? with_gates(layer.heads, projected, dgate_TA) : projected;
    projection_backward(w, gradients, x_TM, normed, flat.view({flat.size(0), -1}), dx_TM);
  }

  void after_attention_forward(const LayerTensors& layer, const at::Tensor& x_TM, int64_t first_row,
                               const at::Tensor& o_TA, const at::Tensor& gate_TA, const at::Tensor& y_TM,
                               KeptAfterAttention* kept) const override {
    const UnitWeights& w = layer.weights;
    const auto dtype = w[kQkv].scalar_type();
    // Where y has the tile dtype, x1 is made there and added to.
    at::Tensor y = first_residual(w, x_TM, gated_output(config_, layer, o_TA, gate_TA),
                                  kept != nullptr ? kept->x1 : at::Tensor(),
                                  y_TM.scalar_type() == dtype ? y_TM : at::Tensor());
    const KeptParts mlp = kept != nullptr ? mlp_parts(kept->mlp) : KeptParts{};
    mlp_->forward(w, norm(config_, y, w[kMlpNorm], dtype), mlp.first, y);
    if (w[kInputGate].defined()) {
      if (kept != nullptr) mlp.last.copy_(y);
      add_layer_input(config_, w, layer.input_RP.narrow(0, first_row, x_TM.size(0)), y);
    }
    if (w[kLayerScale].defined()) y.mul_(w[kLayerScale]);
    y_TM.copy_(y);  // nothing where they are one tensor
  }

  void after_attention_backward(const LayerTensors& layer, UnitGradients& gradients, const at::Tensor& x_TM,
                                int64_t first_row, const at::Tensor& o_TA, const at::Tensor& gate_TA,
                                const at::Tensor& d_TM, KeptAfterAttention* kept,
                                at::Tensor do_TA) const override {
    const UnitWeights& w = layer.weights;
    const auto dtype = w[kQkv].scalar_type();
    const bool post_norms = w[kAttentionOutNorm].defined();
    at::Tensor o = gated_output(config_, layer, o_TA, gate_TA);
    at::Tensor dy = d_TM.to(dtype);  // d_TM itself where that has the tile dtype
    if (w[kLayerScale].defined()) dy.mul_(w[kLayerScale]);
    at::Tensor a, x1;
    if (kept == nullptr) {
      if (post_norms) a = at::empty(x_TM.sizes(), o.options());
      x1 = first_residual(w, x_TM, o, a, {});
    } else if (post_norms) {
      x1 = add_normed(w, x_TM, a = kept->x1, {});
    } else {
      x1 = kept->x1;
    }
    KeptParts mlp = kept != nullptr ? mlp_parts(kept->mlp) : KeptParts{};
    if (w[kInputGate].defined()) {
      if (kept == nullptr) mlp = mlp_again(layer, x1);
      layer_input_backward(config_, w, gradients, std::exchange(mlp.last, {}),
                           layer.input_RP.narrow(0, first_row, x_TM.size(0)), dy);
    }
    auto [dnormed, dx1_beside] = mlp_->backward(w, gradients, x1, norm(config_, x1, w[kMlpNorm], dtype), dy,
                                                std::exchange(mlp.first, {}));
    at::Tensor dx1 = std::move(dy);
    if (dx1_beside.defined()) dx1.add_(std::exchange(dx1_beside, {}));
    norm_backward(config_, dnormed, x1, w[kMlpNorm], dx1, gradients.to_add(kMlpNorm));
    at::Tensor da = dx1;
    if (post_norms) {
      da = at::zeros_like(dx1);
      norm_backward(config_, dx1, a, w[kAttentionOutNorm], da, gradients.to_add(kAttentionOutNorm));
    }
    add_adapted_linear_gradients(gradients, w, kOut, kOutBias, da, o);
    if (gate_TA.defined()) {
      o = at::Tensor();
      gated_output_backward(config_, layer, gradients, o_TA, gate_TA, adapted_linear_backward(da, w, kOut),
                            do_TA);
    } else {
      adapted_linear_backward_into(do_TA, da, w, kOut);
    }
    d_TM.copy_(dx1);
  }

 private:
  // What the MLP keeps, and with a layer input what that is added to.
  KeptParts mlp_parts(const at::Tensor& kept_TW) const {
    if (config_.layer_input_width == 0) return {kept_TW, {}};
    return kept_parts(kept_TW, kept_TW.size(1) - config_.hidden_size);
  }
  // The same from x1.
  KeptParts mlp_again(const LayerTensors& layer, const at::Tensor& x1_TM) const {
    const UnitWeights& w = layer.weights;
    const int64_t width = layer.mlp_kept_width - config_.hidden_size;
    KeptParts parts{at::empty({x1_TM.size(0), width}, x1_TM.options()), x1_TM.clone()};
    mlp_->forward(w, norm(config_, x1_TM, w[kMlpNorm], x1_TM.scalar_type()), parts.first, parts.last);
    return parts;
  }

  // From d of the projection to dx and the gradients.
  void projection_backward(const UnitWeights& w, UnitGradients& gradients, const at::Tensor& x_TM,
                           const at::Tensor& normed_TM, const at::Tensor& dprojected,
                           at::Tensor& dx_TM) const {
    add_adapted_linear_gradients(gradients, w, kQkv, kQkvBias, dprojected, normed_TM);
    norm_backward(config_, adapted_linear_backward(dprojected, w, kQkv), x_TM, w[kAttentionNorm], dx_TM,
                  gradients.to_add(kAttentionNorm));
  }

  // Where q, k and v are projected to, or their gradients before it: attention's own memory where it has the
  // tile dtype and a head for each of the projection, gates apart.
  static at::Tensor projection(const AttentionHeads& heads, const at::Tensor& qkv_TND, at::ScalarType dtype) {
    if (qkv_TND.scalar_type() == dtype && heads.share_keys) return qkv_TND.narrow(1, 0, heads.query);
    if (qkv_TND.scalar_type() == dtype && !heads.keys_are_values) return qkv_TND;
    return at::empty(
        {qkv_TND.size(0), (heads.projected_width() - heads.gate_width()) / heads.width, heads.width},
        qkv_TND.options().dtype(dtype));
  }
  // v as it was projected.
  static at::Tensor values_in(const AttentionHeads& heads, const at::Tensor& projected_TND) {
    return projected_TND.narrow(1, projected_TND.size(1) - heads.key_value, heads.key_value);
  }
  // A row for each head of a token.
  static at::Tensor rows_of_heads(const at::Tensor& heads_TND, at::ScalarType dtype) {
    return heads_TND.to(dtype).reshape({-1, heads_TND.size(2)});
  }
  static at::Tensor ones(const at::Tensor& rows_RD) { return at::ones({rows_RD.size(1)}, rows_RD.options()); }

  void norm_values(const AttentionHeads& heads, const at::Tensor& projected_TND,
                   const at::Tensor& qkv_TND) const {
    const at::Tensor to = qkv_TND.narrow(1, heads.query + heads.key_value, heads.key_value);
    const at::Tensor v = rows_of_heads(values_in(heads, projected_TND), projected_TND.scalar_type());
    to.copy_(rms_norm(v, ones(v), config_.norm_eps, v.scalar_type()).view(to.sizes()));
  }
  // From d(v) in dqkv; added to d(k) where keys are values.
  void norm_values_backward(const AttentionHeads& heads, const at::Tensor& dqkv_TND,
                            const at::Tensor& before_TND, const at::Tensor& dprojected_TND) const {
    const auto dtype = dprojected_TND.scalar_type();
    const at::Tensor dv =
        rows_of_heads(dqkv_TND.narrow(1, heads.query + heads.key_value, heads.key_value), dtype);
    const at::Tensor v = rows_of_heads(values_in(heads, before_TND), dtype), weight = ones(v);
    at::Tensor dbefore = at::zeros_like(v);
    at::Tensor no_weight = at::zeros({v.size(1)}, v.options().dtype(compute_dtype(v)));
    rms_norm_backward(dv, v, weight, config_.norm_eps, dbefore, no_weight);
    const at::Tensor to = values_in(heads, dprojected_TND);
    if (heads.keys_are_values)
      to.add_(dbefore.view(to.sizes()));
    else
      to.copy_(dbefore.view(to.sizes()));
  }

  // The heads that rotation is given: values that are normed apart, or taken from another layer, are none.
  at::Tensor turned(const RotaryHeads& rotary, const at::Tensor& heads_TND) const {
    return config_.v_norm ? heads_TND.narrow(1, 0, rotary.rotated_heads) : heads_TND;
  }

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

  // x1 in the tile dtype: in `into` where defined. `kept` is filled where defined: with a, where there is a norm
  // of it, else with x1.
  at::Tensor first_residual(const UnitWeights& w, const at::Tensor& x_TM, const at::Tensor& o_tile,
                            const at::Tensor& kept_TM, const at::Tensor& into_TM) const {
    const auto or_made = [&](const at::Tensor& given) {
      return given.defined() ? given : at::empty(x_TM.sizes(), o_tile.options());
    };
    if (w[kAttentionOutNorm].defined()) {
      at::Tensor a = or_made(kept_TM);
      adapted_linear_into(a, o_tile, w, kOut, kOutBias);
      return add_normed(w, x_TM, a, into_TM);
    }
    at::Tensor x1 = or_made(into_TM);
    const at::Tensor& sum = kept_TM.defined() ? kept_TM : x1;
    sum.copy_(x_TM);
    add_adapted_linear(sum, o_tile, w, kOut, kOutBias);
    return x1.copy_(sum);  // nothing where they are one tensor
  }
  // x + norm(a), in `into` where defined.
  at::Tensor add_normed(const UnitWeights& w, const at::Tensor& x_TM, const at::Tensor& a_TM,
                        at::Tensor into_TM) const {
    at::Tensor normed = norm(config_, a_TM, w[kAttentionOutNorm], a_TM.scalar_type());
    return into_TM.defined() ? at::add_out(into_TM, normed, x_TM) : normed.add_(x_TM);
  }

  RotaryHeads rotary_heads(const LayerTensors& layer, int64_t first_row) const {
    RotaryHeads rotary;
    rotary.query_heads = layer.heads.query;
    rotary.rotated_heads = layer.heads.query + layer.heads.projected_keys();
    rotary.turning_pairs = layer.rotary.cos.size(1);
    rotary.cos = layer.rotary.cos;
    rotary.sin = layer.rotary.sin;
    rotary.first_row = first_row;
    rotary.q_norm = layer.weights[kQueryNorm];
    // The kernels want a vector where there are no keys to norm, too.
    rotary.k_norm = layer.weights[layer.heads.share_keys ? kQueryNorm : kKeyNorm];
    rotary.norms_add_one = config_.norms_add_one;
    rotary.norm_eps = config_.norm_eps;
    return rotary;
  }

  const ModelConfig& config_;
  std::unique_ptr<const DecoderMlp> mlp_;
};

class DecoderHead final : public Head {
 public:
  explicit DecoderHead(const ModelConfig& config) : Head(config.logit_cap), config_(config) {}

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
  const int64_t before_input = config.layer_input_width > 0 ? config.hidden_size : 0;
  return before_input + make_mlp(config)->kept_width();
}

}  // namespace trireme::decoder
