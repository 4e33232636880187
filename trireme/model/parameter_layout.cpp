#include "trireme/model/parameter_layout.h"

#include "trireme/base/error.h"

namespace trireme {
namespace {

constexpr int64_t alignment_elements = 16;  // 64 bytes in fp32: a vector register, a cache line

bool name_ends_with(const std::string& name, const std::string& suffix) {
  if (name.size() < suffix.size() || name.compare(name.size() - suffix.size(), suffix.size(), suffix) != 0)
    return false;
  // "norm.weight" must not find "q_norm.weight".
  return name.size() == suffix.size() || suffix.front() == '.' ||
         name[name.size() - suffix.size() - 1] == '.';
}

class UnitBuilder {
 public:
  UnitBuilder(std::string name, std::string prefix) : prefix_(std::move(prefix)) {
    unit_.name = std::move(name);
  }

  // A part that starts at the next aligned element.
  void add(const std::string& name, std::vector<int64_t> shape, bool decays) {
    unit_.elements = (unit_.elements + alignment_elements - 1) / alignment_elements * alignment_elements;
    append(name, std::move(shape), decays);
  }
  // A part right behind the one before: the rows of one fused matrix.
  void append(const std::string& name, std::vector<int64_t> shape, bool decays) {
    ParameterSpec spec;
    spec.name = prefix_ + name;
    spec.offset = unit_.elements;
    spec.elements = 1;
    for (const int64_t extent : shape) spec.elements *= extent;
    spec.shape = std::move(shape);
    spec.decays = decays;
    unit_.elements += spec.elements;
    unit_.parameters.push_back(std::move(spec));
  }
  ParameterSpec& last() { return unit_.parameters.back(); }
  UnitSpec finish() {
    unit_.elements = (unit_.elements + alignment_elements - 1) / alignment_elements * alignment_elements;
    return std::move(unit_);
  }

 private:
  UnitSpec unit_;
  std::string prefix_;
};

UnitSpec decoder_unit(const ModelConfig& config, int64_t layer) {
  const int64_t m = config.hidden_size, q = config.query_width(), kv = config.key_value_width();
  const int64_t i = config.intermediate_size, d = config.head_dim;
  UnitBuilder build(cat("layer.", layer), cat("model.layers.", layer, "."));
  build.add("input_layernorm.weight", {m}, false);
  build.add("self_attn.q_proj.weight", {q, m}, true);
  build.append("self_attn.k_proj.weight", {kv, m}, true);
  build.append("self_attn.v_proj.weight", {kv, m}, true);
  if (config.qkv_bias) {
    build.add("self_attn.q_proj.bias", {q}, false);
    build.append("self_attn.k_proj.bias", {kv}, false);
    build.append("self_attn.v_proj.bias", {kv}, false);
  }
  if (config.qk_norm) {
    build.add("self_attn.q_norm.weight", {d}, false);
    build.add("self_attn.k_norm.weight", {d}, false);
  }
  build.add("self_attn.o_proj.weight", {m, q}, true);
  if (config.output_bias) build.add("self_attn.o_proj.bias", {m}, false);
  build.add("post_attention_layernorm.weight", {m}, false);
  build.add("mlp.gate_proj.weight", {i, m}, true);
  build.append("mlp.up_proj.weight", {i, m}, true);
  if (config.mlp_bias) {
    build.add("mlp.gate_proj.bias", {i}, false);
    build.append("mlp.up_proj.bias", {i}, false);
  }
  build.add("mlp.down_proj.weight", {m, i}, true);
  if (config.mlp_bias) build.add("mlp.down_proj.bias", {m}, false);
  return build.finish();
}

void add_linear(UnitBuilder& build, const std::string& name, int64_t rows, int64_t columns) {
  build.add(name + ".weight", {rows, columns}, true);
  build.add(name + ".bias", {rows}, false);
}
void add_layer_norm(UnitBuilder& build, const std::string& name, int64_t width) {
  build.add(name + ".weight", {width}, false);
  build.add(name + ".bias", {width}, false);
}

UnitSpec encoder_unit(const ModelConfig& config, int64_t layer) {
  const int64_t m = config.hidden_size, i = config.intermediate_size;
  UnitBuilder build(cat("layer.", layer), cat("bert.encoder.layer.", layer, "."));
  build.add("attention.self.query.weight", {m, m}, true);
  build.append("attention.self.key.weight", {m, m}, true);
  build.append("attention.self.value.weight", {m, m}, true);
  build.add("attention.self.query.bias", {m}, false);
  build.append("attention.self.key.bias", {m}, false);
  build.last().gradient_vanishes = true;
  build.append("attention.self.value.bias", {m}, false);
  add_linear(build, "attention.output.dense", m, m);
  add_layer_norm(build, "attention.output.LayerNorm", m);
  add_linear(build, "intermediate.dense", i, m);
  add_linear(build, "output.dense", m, i);
  add_layer_norm(build, "output.LayerNorm", m);
  return build.finish();
}

UnitSpec encoder_embedding(const ModelConfig& config) {
  const int64_t m = config.hidden_size;
  UnitBuilder build("embedding", "bert.embeddings.");
  build.add("word_embeddings.weight", {config.vocab_size, m}, true);
  build.add("position_embeddings.weight", {config.max_position_embeddings, m}, true);
  build.add("token_type_embeddings.weight", {config.type_vocab_size, m}, true);
  add_layer_norm(build, "LayerNorm", m);
  return build.finish();
}

UnitSpec encoder_head(const ModelConfig& config) {
  UnitBuilder build("head", "cls.predictions.");
  add_linear(build, "transform.dense", config.hidden_size, config.hidden_size);
  add_layer_norm(build, "transform.LayerNorm", config.hidden_size);
  build.add("bias", {config.vocab_size}, false);
  return build.finish();
}

ModelLayout encoder_layout(const ModelConfig& config) {
  TRIREME_ASSERT(config.tie_word_embeddings, "an encoder's head uses the embedding's matrix");
  ModelLayout layout;
  layout.tied = layout.embedding_read_backward = true;
  layout.tied_names = {{"cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"},
                       {"cls.predictions.decoder.bias", "cls.predictions.bias"}};
  // The next-sentence head and what it reads, which transformers' BertForMaskedLM leaves out too, and a
  // buffer.
  layout.unread_prefixes = {"bert.pooler.", "cls.seq_relationship.", "bert.embeddings.position_ids"};
  layout.units.reserve(static_cast<size_t>(config.num_hidden_layers) + 2);
  layout.units.push_back(encoder_embedding(config));
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
    layout.units.push_back(encoder_unit(config, layer));
  layout.units.push_back(encoder_head(config));
  return layout;
}

// Views of a unit's flat buffer by their names' ends.
class UnitViews {
 public:
  UnitViews(const at::Tensor& flat, const UnitSpec& unit) : flat_(flat), unit_(unit) {}
  at::Tensor single(const std::string& name) const { return parameter_view(flat_, unit_.find(name)); }
  // `rows` of a fused group that starts at `first`.
  at::Tensor fused(const std::string& first, int64_t rows) const {
    const ParameterSpec& spec = unit_.find(first);
    if (spec.shape.size() == 1) return flat_.narrow(0, spec.offset, rows);
    return flat_.narrow(0, spec.offset, rows * spec.shape[1]).view({rows, spec.shape[1]});
  }

 private:
  const at::Tensor& flat_;
  const UnitSpec& unit_;
};

LayerWeights decoder_weights(const UnitViews& views, const ModelConfig& config) {
  const int64_t qkv_rows = config.query_width() + 2 * config.key_value_width();
  LayerWeights weights;
  weights.input_norm = views.single("input_layernorm.weight");
  weights.qkv = views.fused("self_attn.q_proj.weight", qkv_rows);
  if (config.qkv_bias) weights.qkv_bias = views.fused("self_attn.q_proj.bias", qkv_rows);
  if (config.qk_norm) {
    weights.q_norm = views.single("self_attn.q_norm.weight");
    weights.k_norm = views.single("self_attn.k_norm.weight");
  }
  weights.o = views.single("self_attn.o_proj.weight");
  if (config.output_bias) weights.o_bias = views.single("self_attn.o_proj.bias");
  weights.post_norm = views.single("post_attention_layernorm.weight");
  weights.gate_up = views.fused("mlp.gate_proj.weight", 2 * config.intermediate_size);
  if (config.mlp_bias) weights.gate_up_bias = views.fused("mlp.gate_proj.bias", 2 * config.intermediate_size);
  weights.down = views.single("mlp.down_proj.weight");
  if (config.mlp_bias) weights.down_bias = views.single("mlp.down_proj.bias");
  return weights;
}

// "output.dense" alone would find "attention.output.dense" too, so names begin with the layer's.
LayerWeights encoder_weights(const UnitViews& views, const std::string& layer, const ModelConfig& config) {
  const int64_t qkv_rows = 3 * config.hidden_size;
  LayerWeights weights;
  weights.qkv = views.fused("self.query.weight", qkv_rows);
  weights.qkv_bias = views.fused("self.query.bias", qkv_rows);
  weights.o = views.single("attention.output.dense.weight");
  weights.o_bias = views.single("attention.output.dense.bias");
  weights.attention_norm = views.single("attention.output.LayerNorm.weight");
  weights.attention_norm_bias = views.single("attention.output.LayerNorm.bias");
  weights.up = views.single("intermediate.dense.weight");
  weights.up_bias = views.single("intermediate.dense.bias");
  weights.down = views.single(layer + ".output.dense.weight");
  weights.down_bias = views.single(layer + ".output.dense.bias");
  weights.output_norm = views.single(layer + ".output.LayerNorm.weight");
  weights.output_norm_bias = views.single(layer + ".output.LayerNorm.bias");
  return weights;
}

}  // namespace

const ParameterSpec& UnitSpec::find(const std::string& suffix) const {
  const ParameterSpec* found = nullptr;
  for (const ParameterSpec& spec : parameters) {
    if (!name_ends_with(spec.name, suffix)) continue;
    TRIREME_ASSERT(found == nullptr, "unit ", name, " has ", found->name, " and ", spec.name, " for ",
                   suffix);
    found = &spec;
  }
  TRIREME_ASSERT(found != nullptr, "unit ", name, " has no parameter ", suffix);
  return *found;
}

bool UnitSpec::has(const std::string& suffix) const {
  for (const ParameterSpec& spec : parameters)
    if (name_ends_with(spec.name, suffix)) return true;
  return false;
}

ModelLayout make_model_layout(const ModelConfig& config) {
  if (config.family == ModelFamily::bert) return encoder_layout(config);
  ModelLayout layout;
  layout.tied = config.tie_word_embeddings;
  if (layout.tied) layout.tied_names = {{"lm_head.weight", "model.embed_tokens.weight"}};
  layout.units.reserve(static_cast<size_t>(config.num_hidden_layers) + 2);

  UnitBuilder embedding("embedding", "model.");
  embedding.add("embed_tokens.weight", {config.vocab_size, config.hidden_size}, true);
  layout.units.push_back(embedding.finish());

  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
    layout.units.push_back(decoder_unit(config, layer));

  UnitBuilder head("head", "");
  head.add("model.norm.weight", {config.hidden_size}, false);
  if (!layout.tied) head.add("lm_head.weight", {config.vocab_size, config.hidden_size}, true);
  layout.units.push_back(head.finish());
  return layout;
}

at::Tensor parameter_view(const at::Tensor& flat, const ParameterSpec& spec) {
  return flat.narrow(0, spec.offset, spec.elements).view(spec.shape);
}

LayerWeights layer_weights(const at::Tensor& flat, const UnitSpec& unit, const ModelConfig& config) {
  const UnitViews views(flat, unit);
  return config.family == ModelFamily::bert ? encoder_weights(views, unit.name, config)
                                            : decoder_weights(views, config);
}

}  // namespace trireme
