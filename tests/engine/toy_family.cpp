// A family that Trireme does not have, as one file (toy_family_test.cpp adds it): decoders whose attention
// and MLP stand beside each other, as GPT-J's do, with layer norms and a plain GELU.
//
//   before attention   x_TM -> layer norm = n -> q|k|v projection -> rotary -> qkv_TND
//   after attention    x_TM, o -> x + out projection of o + down(GELU(up(n))) = y_TM
//   head               x_TM -> layer norm -> matrix -> logits_TV
//
// Kept after attention: n, and up [T, I] before the GELU.

#include "trireme/base/error.h"
#include "trireme/kernels/linear.h"
#include "trireme/kernels/token_ops.h"
#include "trireme/model/embedding.h"
#include "trireme/model/head.h"
#include "trireme/model/layer.h"
#include "trireme/model/model_family.h"

namespace trireme {
namespace toy {
namespace {

ModelConfig parse(const ConfigKeys& keys) {
  ModelConfig config;
  config.vocab_size = keys.integer("vocab_size", 70);
  config.hidden_size = keys.integer("hidden_size", 32);
  config.intermediate_size = config.mlp_kept_width = keys.integer("intermediate_size", 48);
  config.num_hidden_layers = keys.integer("num_hidden_layers", 2);
  config.num_attention_heads = keys.integer("num_attention_heads", 4);
  config.num_key_value_heads = keys.integer("num_key_value_heads", 2);
  config.head_dim = config.hidden_size / config.num_attention_heads;
  config.max_position_embeddings = keys.integer("max_position_embeddings", 512);
  config.norm_eps = keys.number("layer_norm_epsilon", 1e-5);
  config.layer_window.assign(static_cast<size_t>(config.num_hidden_layers), 0);
  return config;
}

enum LayerSlot : size_t { kQkv, kNorm, kNormBias, kOut, kUp, kUpBias, kDown, kDownBias, kLayerSlots };
enum OwnHeadSlot : size_t { kFinalNorm = kFamilyHeadSlots, kFinalNormBias, kHeadSlots };

ModelLayout layout(const ModelConfig& config) {
  const int64_t m = config.hidden_size, i = config.intermediate_size, q = config.heads().query_width();
  ModelLayout layout;
  UnitBuilder embedding("embedding", "toy.", kFamilyEmbeddingSlots);
  embedding.matrix(kWords, {{"words.weight", config.vocab_size}}, m);
  layout.units.push_back(embedding.finish());
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    UnitBuilder build(cat("layer.", layer), cat("toy.layers.", layer, "."), kLayerSlots);
    build.layer_norm(kNorm, "norm", m);
    build.matrix(kQkv,
                 {{"q.weight", q},
                  {"k.weight", config.heads().key_value_width()},
                  {"v.weight", config.heads().key_value_width()}},
                 m);
    build.matrix(kOut, {{"out.weight", m}}, q);
    build.linear(kUp, "up", i, m);
    build.linear(kDown, "down", m, i);
    layout.units.push_back(build.finish());
  }
  UnitBuilder head("head", "toy.head.", kHeadSlots);
  head.layer_norm(kFinalNorm, "norm", m);
  head.matrix(kOutputMatrix, {{"matrix.weight", config.vocab_size}}, m);
  layout.units.push_back(head.finish());
  return layout;
}

class ParallelLayer final : public Layer {
 public:
  explicit ParallelLayer(const ModelConfig& config) : config_(config) {}

  void before_attention_forward(const LayerTensors& layer, const at::Tensor& x_TM, int64_t first_row,
                                const at::Tensor& qkv_TND, const at::Tensor& /*gate_TA*/) const override {
    const UnitWeights& w = layer.weights;
    const at::Tensor projected = linear_forward(normed(w, x_TM), w[kQkv], {}).view(qkv_TND.sizes());
    rotate_heads(projected, rotary_heads(layer, first_row), qkv_TND);
  }

  void before_attention_backward(const LayerTensors& layer, UnitGradients& gradients, const at::Tensor& x_TM,
                                 int64_t first_row, const at::Tensor& dqkv_TND,
                                 const at::Tensor& /*dgate_TA*/, at::Tensor dx_TM) const override {
    const UnitWeights& w = layer.weights;
    const at::Tensor projected = at::empty(dqkv_TND.sizes(), w[kQkv].options());
    at::Tensor none;
    rotate_heads_backward(dqkv_TND, rotary_heads(layer, first_row), none, projected, none, none);
    const at::Tensor flat = projected.flatten(1);
    gradients.add_linear(kQkv, std::nullopt, flat, normed(w, x_TM));
    add_norm_gradient(w, gradients, at::mm(flat, w[kQkv]), x_TM, dx_TM);
  }

  void after_attention_forward(const LayerTensors& layer, const at::Tensor& x_TM, int64_t /*first_row*/,
                               const at::Tensor& o_TA, const at::Tensor& /*gate_TA*/, const at::Tensor& y_TM,
                               KeptAfterAttention* kept) const override {
    const UnitWeights& w = layer.weights;
    const auto dtype = w[kQkv].scalar_type();
    const at::Tensor n = normed(w, x_TM), up = linear_forward(n, w[kUp], w[kUpBias]);
    if (kept != nullptr) {
      kept->x1.copy_(n);
      kept->mlp.copy_(up);
    }
    y_TM.copy_(at::addmm(x_TM.to(dtype), o_TA.to(dtype), w[kOut].t())
                   .addmm_(exact_gelu(up), w[kDown].t())
                   .add_(w[kDownBias]));
  }

  void after_attention_backward(const LayerTensors& layer, UnitGradients& gradients, const at::Tensor& x_TM,
                                int64_t /*first_row*/, const at::Tensor& o_TA, const at::Tensor& /*gate_TA*/,
                                const at::Tensor& d_TM, KeptAfterAttention* kept,
                                at::Tensor do_TA) const override {
    const UnitWeights& w = layer.weights;
    const auto dtype = w[kQkv].scalar_type();
    const at::Tensor dy = d_TM.to(dtype);
    const at::Tensor n = kept != nullptr ? kept->x1 : normed(w, x_TM);
    at::Tensor up = kept != nullptr ? kept->mlp.contiguous() : linear_forward(n, w[kUp], w[kUpBias]);
    at::Tensor dup = at::mm(dy, w[kDown]);
    exact_gelu_backward(dup, up);  // up is GELU(up) from here on
    gradients.add_linear(kDown, kDownBias, dy, up);
    gradients.add_linear(kUp, kUpBias, dup, n);
    gradients.add_linear(kOut, std::nullopt, dy, o_TA.to(dtype));
    do_TA.copy_(at::mm(dy, w[kOut]));
    add_norm_gradient(w, gradients, at::mm(dup, w[kUp]), x_TM, d_TM);
  }

 private:
  at::Tensor normed(const UnitWeights& w, const at::Tensor& x_TM) const {
    return layer_norm(x_TM, w[kNorm], w[kNormBias], config_.norm_eps, w[kQkv].scalar_type());
  }
  void add_norm_gradient(const UnitWeights& w, UnitGradients& gradients, const at::Tensor& dn,
                         const at::Tensor& x_TM, const at::Tensor& dx_TM) const {
    dx_TM.add_(layer_norm_backward(dn, x_TM, w[kNorm], config_.norm_eps, dn.scalar_type(),
                                   gradients.to_add(kNorm), gradients.to_add(kNormBias)));
  }
  RotaryHeads rotary_heads(const LayerTensors& layer, int64_t first_row) const {
    return {.query_heads = config_.num_attention_heads,
            .rotated_heads = config_.num_attention_heads + config_.num_key_value_heads,
            .cos = layer.rotary.cos,
            .sin = layer.rotary.sin,
            .first_row = first_row,
            .q_norm = {},
            .k_norm = {}};
  }

  const ModelConfig& config_;
};

class NormHead final : public Head {
 public:
  explicit NormHead(const ModelConfig& config) : eps_(config.norm_eps) {}

 protected:
  Tile before_matrix(const UnitWeights& w, const at::Tensor& x_TM) const override {
    return {layer_norm(x_TM, w[kFinalNorm], w[kFinalNormBias], eps_, w[kOutputMatrix].scalar_type()), {}};
  }
  at::Tensor before_matrix_backward(const UnitWeights& w, UnitGradients& gradients, const at::Tensor& x_TM,
                                    Tile&, const at::Tensor& dnormed) const override {
    return layer_norm_backward(dnormed, x_TM, w[kFinalNorm], eps_, dnormed.scalar_type(),
                               gradients.to_add(kFinalNorm), gradients.to_add(kFinalNormBias));
  }

 private:
  double eps_;
};

}  // namespace
}  // namespace toy

const ModelFamily& toy_family() {
  using namespace toy;
  static const ModelFamily family{
      .model_types = {"toy"},
      .norm_eps_key = "layer_norm_epsilon",
      .parse = parse,
      .layout = layout,
      .embedding = make_word_embedding,
      .layer = make_part<Layer, ParallelLayer>,
      .head = make_part<Head, NormHead>,
  };
  return family;
}

}  // namespace trireme
