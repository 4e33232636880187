// BERT's kind of encoders (arXiv 1810.04805), as transformers' BertForMaskedLM computes them: norms after
// each part, biases everywhere, positions by a table.
//
//   embedding          tokens -> words_VM + positions_PM + token types' first row -> layer norm -> x_TM
//   before attention   x_TM -> q|k|v projection -> qkv_TND
//   after attention    x_TM, o -> out projection + x = x1 -> layer norm = a -> up -> GELU -> down + a = x2
//                      -> layer norm = y_TM
//   head               x_TM -> dense -> GELU -> layer norm -> matrix + bias -> logits_TV
//
// Kept after attention: x1; up's output [T, I] before the GELU, and x2 [T, M] behind it in the tile's memory:
// the second norm's backward needs its input, and no other matmul gives it. Without them backward runs the
// out projection, up and down once more. The embedding's backward looks the rows up again instead of keeping
// them: a unit's parameters more to gather, a layer input less to keep.
#include <cstring>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/kernels/linear.h"
#include "trireme/kernels/product.h"
#include "trireme/kernels/token_ops.h"
#include "trireme/model/embedding.h"
#include "trireme/model/head.h"
#include "trireme/model/kept_parts.h"
#include "trireme/model/layer.h"
#include "trireme/model/model_family.h"

namespace trireme {
namespace bert {
namespace {

constexpr double kDefaultDropout = 0.1;

void refuse_unbuilt(const ConfigKeys& keys) {
  for (const char* key : {"is_decoder", "add_cross_attention", "is_encoder_decoder"})
    if (keys.boolean(key, false))
      keys.refuse(key, "a bert is trained as an encoder: full attention, without another model's states");
  if (keys.text("hidden_act", "gelu") != "gelu")
    keys.refuse("hidden_act",
                "only gelu, its exact form, is supported for bert; gelu_new and other approximations by tanh "
                "compute another model");
  if (keys.text("position_embedding_type", "absolute") != "absolute")
    keys.refuse("position_embedding_type", "only absolute position embeddings are supported");
  if (!keys.boolean("tie_word_embeddings", true))
    keys.refuse("tie_word_embeddings",
                "a bert whose output matrix is not its word embedding is not supported");

  if (!keys.has("architectures")) return;
  const std::string architecture = keys.first_text("architectures");
  if (architecture != "BertForMaskedLM" && architecture != "BertForPreTraining")
    keys.refuse(
        "architectures",
        "expected [\"BertForMaskedLM\"] (or BertForPreTraining, whose masked-token head is trained): other "
        "kinds lack the head of the masked-token loss; load it as BertForMaskedLM and save it again");
}

ModelConfig parse(const ConfigKeys& keys) {
  refuse_unbuilt(keys);
  ModelConfig config;
  config.causality = Causality::full;
  config.rotates = false;
  config.raw = keys.json();
  // Without the next-sentence head, which is not trained, export writes a model of this kind.
  config.raw["architectures"] = Json::array({"BertForMaskedLM"});

  config.vocab_size = keys.size("vocab_size", 30522);
  config.hidden_size = keys.size("hidden_size", 768);
  config.intermediate_size = keys.size("intermediate_size", 3072);
  config.num_hidden_layers = keys.size("num_hidden_layers", 12, 100'000);
  config.num_attention_heads = keys.size("num_attention_heads", 12);
  config.num_key_value_heads = config.num_attention_heads;
  config.max_position_embeddings = keys.size("max_position_embeddings", 512);
  config.type_vocab_size = keys.size("type_vocab_size", 2);
  keys.refuse_unless_multiple("hidden_size", config.hidden_size, "num_attention_heads",
                              config.num_attention_heads);
  config.mlp_kept_width = config.intermediate_size + config.hidden_size;
  config.head_dim = config.hidden_size / config.num_attention_heads;
  config.norm_eps = keys.number("layer_norm_eps", 1e-12);
  config.initializer_range = keys.number("initializer_range", 0.02);

  for (const char* key : {"hidden_dropout_prob", "attention_probs_dropout_prob"})
    if (const double rate = keys.number(key, kDefaultDropout); rate != 0) config.dropout[key] = rate;
  config.tie_word_embeddings = true;
  config.qkv_bias = config.output_bias = config.mlp_bias = true;
  config.layer_window.assign(static_cast<size_t>(config.num_hidden_layers), 0);
  config.bos_token_id = keys.first_integer("bos_token_id", std::nullopt);
  config.eos_token_id = keys.first_integer("eos_token_id", std::nullopt);
  config.pad_token_id = keys.first_integer("pad_token_id", 0);
  return config;
}

// A norm is [M], a bias as long as its matrix has rows.
enum OwnEmbeddingSlot : size_t {
  kPositions = kFamilyEmbeddingSlots,  // [max_position_embeddings, M]
  kTokenTypes,                         // [type_vocab_size, M]
  kEmbeddingNorm,
  kEmbeddingNormBias,
  kEmbeddingSlots
};
// kQkv [3 M, M], kOut [M, M], kUp [I, M], kDown [M, I]
enum LayerSlot : size_t {
  kQkv,
  kQkvBias,
  kOut,
  kOutBias,
  kAttentionNorm,
  kAttentionNormBias,
  kUp,
  kUpBias,
  kDown,
  kDownBias,
  kOutputNorm,
  kOutputNormBias,
  kLayerSlots
};
// kDense [M, M]
enum OwnHeadSlot : size_t { kDense = kFamilyHeadSlots, kDenseBias, kHeadNorm, kHeadNormBias, kHeadSlots };

UnitSpec embedding_unit(const ModelConfig& config) {
  const int64_t m = config.hidden_size;
  UnitBuilder build("embedding", "bert.embeddings.", kEmbeddingSlots);
  build.matrix(kWords, {{"word_embeddings.weight", config.vocab_size}}, m);
  build.matrix(kPositions, {{"position_embeddings.weight", config.max_position_embeddings}}, m);
  build.matrix(kTokenTypes, {{"token_type_embeddings.weight", config.type_vocab_size}}, m);
  build.layer_norm(kEmbeddingNorm, "LayerNorm", m);
  return build.finish();
}

UnitSpec layer_unit(const ModelConfig& config, int64_t layer) {
  const int64_t m = config.hidden_size, i = config.intermediate_size;
  UnitBuilder build(cat("layer.", layer), cat("bert.encoder.layer.", layer, "."), kLayerSlots);
  build.matrix(kQkv,
               {{"attention.self.query.weight", m},
                {"attention.self.key.weight", m},
                {"attention.self.value.weight", m}},
               m);
  build.vector(
      kQkvBias,
      {{"attention.self.query.bias", m}, {"attention.self.key.bias", m}, {"attention.self.value.bias", m}});
  build.linear(kOut, "attention.output.dense", m, m);
  build.layer_norm(kAttentionNorm, "attention.output.LayerNorm", m);
  build.linear(kUp, "intermediate.dense", i, m);
  build.linear(kDown, "output.dense", m, i);
  build.layer_norm(kOutputNorm, "output.LayerNorm", m);
  return build.finish();
}

UnitSpec head_unit(const ModelConfig& config) {
  const int64_t m = config.hidden_size;
  UnitBuilder build("head", "cls.predictions.", kHeadSlots);
  build.linear(kDense, "transform.dense", m, m);
  build.layer_norm(kHeadNorm, "transform.LayerNorm", m);
  build.vector(kOutputBias, {{"bias", config.vocab_size}});
  // transformers ties in both directions: a file may keep either of the two names.
  build.last().other_name = "cls.predictions.decoder.bias";
  UnitSpec unit = build.finish();
  for (ParameterSpec& parameter : unit.parameters)
    parameter.missing_hint =
        "these weights have no head for the masked-token loss; load them as BertForMaskedLM, which begins a "
        "fresh one, and save them again";
  return unit;
}

// BERT's first checkpoints, converted from TensorFlow, have other names for a layer norm's weight and bias.
void name_as_tensorflow(UnitSpec& unit) {
  for (ParameterSpec& parameter : unit.parameters)
    for (const auto& [today, before] :
         {std::pair("LayerNorm.weight", "LayerNorm.gamma"), std::pair("LayerNorm.bias", "LayerNorm.beta")})
      if (parameter.name.ends_with(today))
        parameter.other_name = parameter.name.substr(0, parameter.name.size() - std::strlen(today)) + before;
}

ModelLayout layout(const ModelConfig& config) {
  const char* const differs_hint = "a bert with an output matrix or bias of its own is not supported";
  ModelLayout layout;
  layout.tied = layout.embedding_read_backward = true;
  layout.tied_names = {
      {"cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight", differs_hint},
      {"cls.predictions.decoder.bias", "cls.predictions.bias", differs_hint}};
  // The next-sentence head and what it reads, which transformers' BertForMaskedLM leaves out too, and a
  // buffer.
  layout.unread_names = {"bert.pooler.", "cls.seq_relationship.", "bert.embeddings.position_ids"};
  layout.units.reserve(static_cast<size_t>(config.num_hidden_layers) + 2);
  layout.units.push_back(embedding_unit(config));
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    layout.units.push_back(layer_unit(config, layer));
    for (ParameterSpec& parameter : layout.units.back().parameters)
      parameter.gradient_vanishes = parameter.name.ends_with("self.key.bias");
  }
  layout.units.push_back(head_unit(config));
  for (UnitSpec& unit : layout.units) name_as_tensorflow(unit);
  return layout;
}

class EncoderEmbedding final : public Embedding {
 public:
  explicit EncoderEmbedding(const ModelConfig& config) : config_(config) {}

  void forward(const UnitWeights& w, const EmbeddedTokens& embedded, at::Tensor x_TM) const override {
    x_TM.copy_(layer_norm(sum(w, embedded), w[kEmbeddingNorm], w[kEmbeddingNormBias], config_.norm_eps,
                          x_TM.scalar_type()));
  }
  void backward(const UnitWeights& w, UnitGradients& gradients, const EmbeddedTokens& embedded,
                const at::Tensor& dx_TM) const override {
    const at::Tensor sum = this->sum(w, embedded);
    const at::Tensor d =
        layer_norm_backward(dx_TM, sum, w[kEmbeddingNorm], config_.norm_eps, sum.scalar_type(),
                            gradients.to_add(kEmbeddingNorm), gradients.to_add(kEmbeddingNormBias));
    gradients.to_add(kPositions).index_add_(0, embedded.positions, d);
    gradients.to_add(kTokenTypes).select(0, 0).add_(d.sum(0));
    add_word_gradients(gradients.to_add(kWords), config_.pad_token_id, embedded.tokens, d);
  }

 private:
  // What goes into the layer norm.
  static at::Tensor sum(const UnitWeights& w, const EmbeddedTokens& embedded) {
    at::Tensor sum = w[kWords].index_select(0, embedded.tokens).to(compute_dtype(w[kWords]));
    sum.add_(w[kTokenTypes].select(0, 0));
    return sum.add_(w[kPositions].index_select(0, embedded.positions));
  }

  const ModelConfig& config_;
};

// o Wo' + b + x, in the tile dtype.
at::Tensor residual_after_attention(const UnitWeights& w, const at::Tensor& x_TM, const at::Tensor& o_tile) {
  at::Tensor x1 = x_TM.to(o_tile.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  add_product(x1, o_tile, w[kOut].t());
  return x1.add_(w[kOutBias]);
}

// act Wd' + b + a, over a.
at::Tensor residual_after_mlp(const UnitWeights& w, const at::Tensor& a_TM, const at::Tensor& act_TI) {
  add_product(a_TM, act_TI, w[kDown].t());
  return a_TM.add_(w[kDownBias]);
}

class EncoderLayer final : public Layer {
 public:
  explicit EncoderLayer(const ModelConfig& config) : eps_(config.norm_eps) {}

  void before_attention_forward(const LayerTensors& layer, const at::Tensor& x_TM, int64_t,
                                const at::Tensor& qkv_TND, const at::Tensor& /*gate_TA*/) const override {
    const UnitWeights& w = layer.weights;
    const auto dtype = w[kQkv].scalar_type();
    const bool in_place = qkv_TND.scalar_type() == dtype;
    const at::Tensor projected =
        in_place ? qkv_TND : at::empty(qkv_TND.sizes(), qkv_TND.options().dtype(dtype));
    at::Tensor flat = projected.view({projected.size(0), -1});
    linear_into(flat, x_TM.to(dtype), w[kQkv], w[kQkvBias]);
    if (!in_place) qkv_TND.copy_(projected);
  }

  void before_attention_backward(const LayerTensors& layer, UnitGradients& gradients, const at::Tensor& x_TM,
                                 int64_t, const at::Tensor& dqkv_TND, const at::Tensor& /*dgate_TA*/,
                                 at::Tensor dx_TM) const override {
    const UnitWeights& w = layer.weights;
    const auto dtype = w[kQkv].scalar_type();
    const at::Tensor dqkv = dqkv_TND.to(dtype).flatten(1);
    gradients.add_linear(kQkv, kQkvBias, dqkv, x_TM.to(dtype));
    if (dx_TM.scalar_type() == dtype)
      add_product(dx_TM, dqkv, w[kQkv]);
    else
      dx_TM.add_(product(dqkv, w[kQkv]));
  }

  void after_attention_forward(const LayerTensors& layer, const at::Tensor& x_TM, int64_t,
                               const at::Tensor& o_TA, const at::Tensor& /*gate_TA*/, const at::Tensor& y_TM,
                               KeptAfterAttention* kept) const override {
    const UnitWeights& w = layer.weights;
    const auto dtype = w[kQkv].scalar_type();
    at::Tensor x1 = residual_after_attention(w, x_TM, o_TA.to(dtype));
    const at::Tensor a = layer_norm(x1, w[kAttentionNorm], w[kAttentionNormBias], eps_, dtype);
    if (kept != nullptr) kept->x1.copy_(x1);
    x1 = at::Tensor();
    const at::Tensor up = linear_forward(a, w[kUp], w[kUpBias]);
    const at::Tensor x2 = residual_after_mlp(w, a, exact_gelu(up));
    if (kept != nullptr) {
      const KeptParts mlp = kept_parts(kept->mlp, w[kUp].size(0));
      mlp.first.copy_(up);
      mlp.last.copy_(x2);
    }
    y_TM.copy_(layer_norm(x2, w[kOutputNorm], w[kOutputNormBias], eps_, y_TM.scalar_type()));
  }

  void after_attention_backward(const LayerTensors& layer, UnitGradients& gradients, const at::Tensor& x_TM,
                                int64_t, const at::Tensor& o_TA, const at::Tensor& /*gate_TA*/,
                                const at::Tensor& d_TM, KeptAfterAttention* kept,
                                at::Tensor do_TA) const override {
    const UnitWeights& w = layer.weights;
    const auto dtype = w[kQkv].scalar_type();
    const at::Tensor o = o_TA.to(dtype);
    const at::Tensor x1 = kept != nullptr ? kept->x1 : residual_after_attention(w, x_TM, o);
    const at::Tensor a = layer_norm(x1, w[kAttentionNorm], w[kAttentionNormBias], eps_, dtype);
    at::Tensor up, x2;
    if (kept != nullptr) {
      const KeptParts mlp = kept_parts(kept->mlp, w[kUp].size(0));
      up = mlp.first;
      x2 = mlp.last;
    } else {
      up = linear_forward(a, w[kUp], w[kUpBias]);
      x2 = residual_after_mlp(w, a.clone(), exact_gelu(up));
    }
    at::Tensor dx2 = layer_norm_backward(d_TM, x2, w[kOutputNorm], eps_, dtype, gradients.to_add(kOutputNorm),
                                         gradients.to_add(kOutputNormBias));
    x2 = at::Tensor();
    at::Tensor dup = product(dx2, w[kDown]);
    exact_gelu_backward(dup, up);  // dup was d(act); up is act from here on
    gradients.add_linear(kDown, kDownBias, dx2, up);
    gradients.add_linear(kUp, kUpBias, dup, a);
    add_product(dx2, dup, w[kUp]);
    const at::Tensor& da = dx2;
    up = dup = at::Tensor();
    const at::Tensor dx1 =
        layer_norm_backward(da, x1, w[kAttentionNorm], eps_, dtype, gradients.to_add(kAttentionNorm),
                            gradients.to_add(kAttentionNormBias));
    gradients.add_linear(kOut, kOutBias, dx1, o);
    linear_backward_into(do_TA, dx1, w[kOut]);
    d_TM.copy_(dx1);
  }

 private:
  double eps_;
};

class EncoderHead final : public Head {
 public:
  explicit EncoderHead(const ModelConfig& config) : eps_(config.norm_eps) {}

 protected:
  Tile before_matrix(const UnitWeights& w, const at::Tensor& x_TM) const override {
    const auto dtype = w[kDense].scalar_type();
    const at::Tensor dense = linear_forward(x_TM.to(dtype), w[kDense], w[kDenseBias]);
    const at::Tensor act = exact_gelu(dense);
    return {layer_norm(act, w[kHeadNorm], w[kHeadNormBias], eps_, dtype), {dense, act}};
  }
  at::Tensor before_matrix_backward(const UnitWeights& w, UnitGradients& gradients, const at::Tensor& x_TM,
                                    Tile& tile, const at::Tensor& dnormed) const override {
    const auto dtype = dnormed.scalar_type();
    at::Tensor &dense = tile.kept[0], &act = tile.kept[1];
    at::Tensor d = layer_norm_backward(dnormed, act, w[kHeadNorm], eps_, dtype, gradients.to_add(kHeadNorm),
                                       gradients.to_add(kHeadNormBias));
    exact_gelu_backward(d, dense);
    gradients.add_linear(kDense, kDenseBias, d, x_TM.to(dtype));
    return product(d, w[kDense]);
  }

 private:
  double eps_;
};

}  // namespace
}  // namespace bert

const ModelFamily& bert_family() {
  using namespace bert;
  static const ModelFamily family{
      .model_types = {"bert"},
      .norm_eps_key = "layer_norm_eps",
      .parse = parse,
      .layout = layout,
      .embedding = make_part<Embedding, EncoderEmbedding>,
      .layer = make_part<Layer, EncoderLayer>,
      .head = make_part<Head, EncoderHead>,
      .tiles = TileFormula::encoder,
  };
  return family;
}

}  // namespace trireme
