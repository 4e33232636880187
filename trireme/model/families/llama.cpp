// Llama's kind of decoders: norms before each part, rotary positions, a gated MLP.
//
//   embedding          tokens -> rows of words -> x_TM
//   before attention   x_TM -> RMS norm -> q|k|v projection -> (q/k norm) -> rotary -> qkv_TND
//   after attention    x_TM, o -> out projection + x = x1 -> RMS norm -> gate|up -> SwiGLU -> down + x1 =
//                      y_TM
//   head               x_TM -> RMS norm -> matrix -> logits_TV
//
// Kept after attention: x1, and gate|up [T, 2 I]. Backward runs the out projection and gate|up once more
// (or takes what was kept), never the down projection.
#include <algorithm>
#include <iterator>

#include "trireme/base/error.h"
#include "trireme/kernels/linear.h"
#include "trireme/kernels/product.h"
#include "trireme/kernels/token_ops.h"
#include "trireme/model/decoder_config.h"
#include "trireme/model/embedding.h"
#include "trireme/model/head.h"
#include "trireme/model/layer.h"
#include "trireme/model/model_family.h"

namespace trireme {
namespace llama {
namespace {

using AttentionBias = DecoderKind::AttentionBias;
using Windows = DecoderKind::Windows;

// In the order of DecoderKind's fields.
constexpr DecoderKind kKinds[] = {
    {"llama", 32000, 11008, 0, 2048, 0, true, true, AttentionBias::by_key, true, false, Windows::none},
    {"mistral", 32000, 14336, 8, 131072, 0, true, false, AttentionBias::none, false, false,
     Windows::all_layers},
    {"qwen2", 151936, 22016, 32, 32768, 0, false, false, AttentionBias::qkv, false, false,
     Windows::chosen_layers},
    {"qwen3", 151936, 22016, 32, 32768, 128, false, false, AttentionBias::by_key, false, true,
     Windows::chosen_layers},
};

ModelConfig parse(const ConfigKeys& keys) {
  const std::string type = keys.text("model_type", "");
  const auto* const kind = std::find_if(std::begin(kKinds), std::end(kKinds),
                                        [&](const DecoderKind& row) { return type == row.model_type; });
  TRIREME_ASSERT(kind != std::end(kKinds), "no decoder is called ", type);
  ModelConfig config = parse_decoder_config(keys, *kind);
  config.mlp_kept_width = 2 * config.intermediate_size;
  return config;
}

enum LayerSlot : size_t {
  kQkv,         // [(H + 2K) D, M]
  kQkvBias,     // [(H + 2K) D]
  kOut,         // [M, H D]
  kOutBias,     // [M]
  kInputNorm,   // [M]
  kQueryNorm,   // [D]
  kKeyNorm,     // [D]
  kPostNorm,    // [M]
  kGateUp,      // [2 I, M]
  kGateUpBias,  // [2 I]
  kDown,        // [M, I]
  kDownBias,    // [M]
  kLayerSlots
};
enum OwnHeadSlot : size_t { kFinalNorm = kFamilyHeadSlots, kHeadSlots };

UnitSpec layer_unit(const ModelConfig& config, int64_t layer) {
  const int64_t m = config.hidden_size, q = config.query_width(), kv = config.key_value_width();
  const int64_t i = config.intermediate_size, d = config.head_dim;
  UnitBuilder build(cat("layer.", layer), cat("model.layers.", layer, "."), kLayerSlots);
  build.vector(kInputNorm, {{"input_layernorm.weight", m}});
  build.matrix(
      kQkv,
      {{"self_attn.q_proj.weight", q}, {"self_attn.k_proj.weight", kv}, {"self_attn.v_proj.weight", kv}}, m);
  if (config.qkv_bias)
    build.vector(
        kQkvBias,
        {{"self_attn.q_proj.bias", q}, {"self_attn.k_proj.bias", kv}, {"self_attn.v_proj.bias", kv}});
  if (config.qk_norm) {
    build.vector(kQueryNorm, {{"self_attn.q_norm.weight", d}});
    build.vector(kKeyNorm, {{"self_attn.k_norm.weight", d}});
  }
  build.matrix(kOut, {{"self_attn.o_proj.weight", m}}, q);
  if (config.output_bias) build.vector(kOutBias, {{"self_attn.o_proj.bias", m}});
  build.vector(kPostNorm, {{"post_attention_layernorm.weight", m}});
  build.matrix(kGateUp, {{"mlp.gate_proj.weight", i}, {"mlp.up_proj.weight", i}}, m);
  if (config.mlp_bias) build.vector(kGateUpBias, {{"mlp.gate_proj.bias", i}, {"mlp.up_proj.bias", i}});
  build.matrix(kDown, {{"mlp.down_proj.weight", m}}, i);
  if (config.mlp_bias) build.vector(kDownBias, {{"mlp.down_proj.bias", m}});
  return build.finish();
}

ModelLayout layout(const ModelConfig& config) {
  ModelLayout layout;
  layout.tied = config.tie_word_embeddings;
  if (layout.tied)
    layout.tied_names = {
        {"lm_head.weight", "model.embed_tokens.weight",
         "config.json says that the head shares the embedding; set tie_word_embeddings false there"}};
  // Saved by transformers before 4.32, computed from config.json since.
  layout.unread_names = {"rotary_emb.inv_freq"};
  layout.units.reserve(static_cast<size_t>(config.num_hidden_layers) + 2);

  UnitBuilder embedding("embedding", "model.", kFamilyEmbeddingSlots);
  embedding.matrix(kWords, {{"embed_tokens.weight", config.vocab_size}}, config.hidden_size);
  embedding.last().missing_hint =
      "a model whose head shares the embedding keeps it under this name; save it again with transformers";
  layout.units.push_back(embedding.finish());

  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
    layout.units.push_back(layer_unit(config, layer));

  UnitBuilder head("head", "", kHeadSlots);
  head.vector(kFinalNorm, {{"model.norm.weight", config.hidden_size}});
  if (!layout.tied) {
    head.matrix(kOutputMatrix, {{"lm_head.weight", config.vocab_size}}, config.hidden_size);
    head.last().missing_hint =
        "if the model's head shares the embedding, set tie_word_embeddings true in config.json";
  }
  layout.units.push_back(head.finish());
  return layout;
}

// x + o Wo', in the tile dtype.
at::Tensor residual_after_attention(const UnitWeights& w, const at::Tensor& x_TM, const at::Tensor& o_tile) {
  at::Tensor x1 = x_TM.to(o_tile.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  add_product(x1, o_tile, w[kOut].t());
  if (w[kOutBias].defined()) x1.add_(w[kOutBias]);
  return x1;
}

class DecoderLayer final : public Layer {
 public:
  explicit DecoderLayer(const ModelConfig& config) : config_(config) {}

  void before_attention_forward(const LayerTensors& layer, const at::Tensor& x_TM, int64_t first_row,
                                const at::Tensor& qkv_TND) const override {
    const UnitWeights& w = layer.weights;
    const auto dtype = w[kQkv].scalar_type();
    const at::Tensor normed = rms_norm(x_TM, w[kInputNorm], config_.norm_eps, dtype);
    const bool in_place = qkv_TND.scalar_type() == dtype;
    at::Tensor projected = in_place ? qkv_TND : at::empty(qkv_TND.sizes(), qkv_TND.options().dtype(dtype));
    at::Tensor flat = projected.view({projected.size(0), -1});
    linear_into(flat, normed, w[kQkv], w[kQkvBias]);
    rotate_heads(projected, rotary_heads(layer, first_row), qkv_TND);
  }

  void before_attention_backward(const LayerTensors& layer, UnitWeights& gradients, const at::Tensor& x_TM,
                                 int64_t first_row, const at::Tensor& dqkv_TND,
                                 at::Tensor dx_TM) const override {
    const UnitWeights& w = layer.weights;
    const auto dtype = w[kQkv].scalar_type();
    const RotaryHeads rotary = rotary_heads(layer, first_row);
    const at::Tensor normed = rms_norm(x_TM, w[kInputNorm], config_.norm_eps, dtype);
    at::Tensor before;
    if (w[kQueryNorm].defined()) {
      const int64_t rows = rotary.rotated_heads * config_.head_dim;
      const at::Tensor bias = w[kQkvBias].defined() ? w[kQkvBias].narrow(0, 0, rows) : w[kQkvBias];
      before = linear_forward(normed, w[kQkv].narrow(0, 0, rows), bias)
                   .view({x_TM.size(0), rotary.rotated_heads, config_.head_dim});
    }
    const bool in_place = dqkv_TND.scalar_type() == dtype;
    const at::Tensor projected =
        in_place ? dqkv_TND : at::empty(dqkv_TND.sizes(), dqkv_TND.options().dtype(dtype));
    rotate_heads_backward(dqkv_TND, rotary, before, projected, gradients[kQueryNorm], gradients[kKeyNorm]);
    const at::Tensor flat = projected.view({projected.size(0), -1});
    add_linear_gradient(gradients[kQkv], gradients[kQkvBias], flat, normed);
    const at::Tensor dnormed = product(flat, w[kQkv]);
    rms_norm_backward(dnormed, x_TM, w[kInputNorm], config_.norm_eps, dx_TM, gradients[kInputNorm]);
  }

  void after_attention_forward(const LayerTensors& layer, const at::Tensor& x_TM, const at::Tensor& o_TA,
                               const at::Tensor& y_TM, KeptAfterAttention* kept) const override {
    const UnitWeights& w = layer.weights;
    const auto dtype = w[kQkv].scalar_type();
    at::Tensor x1 = residual_after_attention(w, x_TM, o_TA.to(dtype));
    const at::Tensor normed = rms_norm(x1, w[kPostNorm], config_.norm_eps, dtype);
    at::Tensor gate_up =
        kept != nullptr ? kept->mlp : at::empty({x_TM.size(0), w[kGateUp].size(0)}, normed.options());
    linear_into(gate_up, normed, w[kGateUp], w[kGateUpBias]);
    const at::Tensor act = swiglu(gate_up);
    if (kept != nullptr) kept->x1.copy_(x1);
    add_product(x1, act, w[kDown].t());
    if (w[kDownBias].defined()) x1.add_(w[kDownBias]);
    y_TM.copy_(x1);
  }

  void after_attention_backward(const LayerTensors& layer, UnitWeights& gradients, const at::Tensor& x_TM,
                                const at::Tensor& o_TA, const at::Tensor& dy_TM, KeptAfterAttention* kept,
                                const at::Tensor& dx_TM, at::Tensor do_TA) const override {
    const UnitWeights& w = layer.weights;
    const auto dtype = w[kQkv].scalar_type();
    const double eps = config_.norm_eps;
    const at::Tensor o = o_TA.to(dtype), dy = dy_TM.to(dtype);
    const at::Tensor x1 = kept != nullptr ? kept->x1 : residual_after_attention(w, x_TM, o);
    const at::Tensor normed = rms_norm(x1, w[kPostNorm], eps, dtype);
    at::Tensor gate_up =
        kept != nullptr ? kept->mlp.to(dtype) : linear_forward(normed, w[kGateUp], w[kGateUpBias]);
    const at::Tensor dact = product(dy, w[kDown]);
    const at::Tensor act = swiglu_backward(dact, gate_up);  // gate_up is d(gate_up) from here on
    add_linear_gradient(gradients[kDown], gradients[kDownBias], dy, act);
    add_linear_gradient(gradients[kGateUp], gradients[kGateUpBias], gate_up, normed);
    const at::Tensor dnormed = product(gate_up, w[kGateUp]);
    at::Tensor dx1 = dy.clone();
    rms_norm_backward(dnormed, x1, w[kPostNorm], eps, dx1, gradients[kPostNorm]);
    add_linear_gradient(gradients[kOut], gradients[kOutBias], dx1, o);
    linear_backward_into(do_TA, dx1, w[kOut]);
    dx_TM.copy_(dx1);
  }

 private:
  RotaryHeads rotary_heads(const LayerTensors& layer, int64_t first_row) const {
    RotaryHeads rotary;
    rotary.query_heads = config_.num_attention_heads;
    rotary.rotated_heads = config_.num_attention_heads + config_.num_key_value_heads;
    rotary.cos = layer.rotary.cos;
    rotary.sin = layer.rotary.sin;
    rotary.first_row = first_row;
    rotary.q_norm = layer.weights[kQueryNorm];
    rotary.k_norm = layer.weights[kKeyNorm];
    rotary.norm_eps = config_.norm_eps;
    return rotary;
  }

  const ModelConfig& config_;
};

class DecoderHead final : public Head {
 public:
  explicit DecoderHead(const ModelConfig& config) : eps_(config.norm_eps) {}

 protected:
  Tile before_matrix(const UnitWeights& w, const at::Tensor& x_TM) const override {
    return {rms_norm(x_TM, w[kFinalNorm], eps_, w[kOutputMatrix].scalar_type()), {}};
  }
  at::Tensor before_matrix_backward(const UnitWeights& w, UnitWeights& gradients, const at::Tensor& x_TM,
                                    Tile&, const at::Tensor& dnormed) const override {
    at::Tensor dx = at::zeros(x_TM.sizes(), dnormed.options());
    rms_norm_backward(dnormed, x_TM, w[kFinalNorm], eps_, dx, gradients[kFinalNorm]);
    return dx;
  }

 private:
  double eps_;
};

}  // namespace
}  // namespace llama

const ModelFamily& llama_family() {
  using namespace llama;
  static const ModelFamily family{
      .model_types = {"llama", "mistral", "qwen2", "qwen3"},
      .config_keys = {"attention_bias",
                      "attention_dropout",
                      "bos_token_id",
                      "eos_token_id",
                      "head_dim",
                      "hidden_act",
                      "hidden_size",
                      "initializer_range",
                      "intermediate_size",
                      "layer_types",
                      "max_position_embeddings",
                      "max_window_layers",
                      "mlp_bias",
                      "num_attention_heads",
                      "num_hidden_layers",
                      "num_key_value_heads",
                      "original_max_position_embeddings",
                      "pad_token_id",
                      "rms_norm_eps",
                      "rope_parameters",
                      "rope_scaling",
                      "rope_theta",
                      "sliding_window",
                      "tie_word_embeddings",
                      "use_cache",
                      "use_sliding_window",
                      "vocab_size"},
      .norm_eps_key = "rms_norm_eps",
      .parse = parse,
      .layout = layout,
      .embedding = make_word_embedding,
      .layer = make_part<Layer, DecoderLayer>,
      .head = make_part<Head, DecoderHead>,
      .tiles = TileFormula::decoder,
  };
  return family;
}

}  // namespace trireme
