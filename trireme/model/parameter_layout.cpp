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
  UnitSpec finish() {
    unit_.elements = (unit_.elements + alignment_elements - 1) / alignment_elements * alignment_elements;
    return std::move(unit_);
  }

 private:
  UnitSpec unit_;
  std::string prefix_;
};

UnitSpec layer_unit_of(const ModelConfig& config, int64_t layer) {
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
  ModelLayout layout;
  layout.tied = config.tie_word_embeddings;
  layout.units.reserve(static_cast<size_t>(config.num_hidden_layers) + 2);

  UnitBuilder embedding("embedding", "model.");
  embedding.add("embed_tokens.weight", {config.vocab_size, config.hidden_size}, true);
  layout.units.push_back(embedding.finish());

  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
    layout.units.push_back(layer_unit_of(config, layer));

  UnitBuilder head("head", "");
  head.add("model.norm.weight", {config.hidden_size}, false);
  if (!layout.tied) head.add("lm_head.weight", {config.vocab_size, config.hidden_size}, true);
  layout.units.push_back(head.finish());
  return layout;
}

at::Tensor parameter_view(const at::Tensor& flat, const ParameterSpec& spec) {
  return flat.narrow(0, spec.offset, spec.elements).view(spec.shape);
}

DecoderTensors decoder_tensors(const at::Tensor& flat, const UnitSpec& unit, const ModelConfig& config) {
  // `rows` of a fused group that starts at `first`.
  const auto fused = [&](const char* first, int64_t rows) {
    const ParameterSpec& spec = unit.find(first);
    if (spec.shape.size() == 1) return flat.narrow(0, spec.offset, rows);
    return flat.narrow(0, spec.offset, rows * spec.shape[1]).view({rows, spec.shape[1]});
  };
  const auto single = [&](const char* name) { return parameter_view(flat, unit.find(name)); };
  const int64_t qkv_rows = config.query_width() + 2 * config.key_value_width();

  DecoderTensors tensors;
  tensors.input_norm = single("input_layernorm.weight");
  tensors.qkv = fused("self_attn.q_proj.weight", qkv_rows);
  if (config.qkv_bias) tensors.qkv_bias = fused("self_attn.q_proj.bias", qkv_rows);
  if (config.qk_norm) {
    tensors.q_norm = single("self_attn.q_norm.weight");
    tensors.k_norm = single("self_attn.k_norm.weight");
  }
  tensors.o = single("self_attn.o_proj.weight");
  if (config.output_bias) tensors.o_bias = single("self_attn.o_proj.bias");
  tensors.post_norm = single("post_attention_layernorm.weight");
  tensors.gate_up = fused("mlp.gate_proj.weight", 2 * config.intermediate_size);
  if (config.mlp_bias) tensors.gate_up_bias = fused("mlp.gate_proj.bias", 2 * config.intermediate_size);
  tensors.down = single("mlp.down_proj.weight");
  if (config.mlp_bias) tensors.down_bias = single("mlp.down_proj.bias");
  return tensors;
}

}  // namespace trireme
