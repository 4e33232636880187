// Llama's family of decoders: the names of their parameters. What differs from kind to kind: decoder_kinds.cpp.
// Their arithmetic: decoder_layer.cpp.
#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/model/decoder_config.h"
#include "trireme/model/embedding.h"
#include "trireme/model/families/decoder_kinds.h"
#include "trireme/model/families/decoder_layer.h"
#include "trireme/model/families/decoder_units.h"
#include "trireme/model/families/delta_net_mixing.h"
#include "trireme/model/families/layer_input.h"
#include "trireme/model/language_model.h"
#include "trireme/model/model_family.h"

namespace trireme {
namespace llama {
namespace {

using namespace decoder;  // slots

constexpr const char* kOtherExperts =
    "mixtures of experts of this kind are not built; mixtral and those of Qwen are, and trireme.parallelize "
    "takes others (docs/huggingface.md)";
constexpr const char* kInPythonAlone =
    "models of this family are not built here; trireme.parallelize takes them, with Transformers' Trainer, "
    "TRL or a loop of your own (docs/huggingface.md)";

ModelConfig parse(const ConfigKeys& keys) {
  const std::string type = keys.text("model_type", "");
  const auto kind = std::ranges::find(decoder_kinds(), type, &DecoderKind::model_type);
  TRIREME_ASSERT(kind != decoder_kinds().end(), "no decoder is called ", type);
  ModelConfig config = parse_decoder_config(keys, *kind);
  config.mlp_kept_width = mlp_kept_width(config);
  if (config.key_sharing_layers > 0) {
    ModelConfig sharing = config;
    sharing.intermediate_size = config.sharing_intermediate_size;
    config.sharing_mlp_kept_width = mlp_kept_width(sharing);
  }
  return config;
}

void expert_matrices(UnitBuilder& build, const ModelConfig& config) {
  const int64_t m = config.hidden_size, i = config.intermediate_size, E = config.num_experts;
  const ExpertKind& names = *config.expert_kind;
  build.matrix(kRouter, {{names.router, E}}, m);
  if (names.expert == nullptr) {
    build.expert_matrices(kGateUp, {{names.joined_gate_up, E * 2 * i}}, m, E, config.experts_per_token,
                          nullptr);
    build.last().shape = {E, 2 * i, m};
    build.expert_matrices(kDown, {{names.joined_down, E * m}}, i, E, config.experts_per_token, nullptr);
    build.last().shape = {E, m, i};
    return;
  }
  std::vector<UnitBuilder::Rows> gate_up, down;
  for (int64_t expert = 0; expert < E; ++expert) {
    gate_up.push_back({cat(names.expert, expert, names.gate), i});
    gate_up.push_back({cat(names.expert, expert, names.up), i});
    down.push_back({cat(names.expert, expert, names.down), m});
  }
  build.expert_matrices(kGateUp, gate_up, m, E, config.experts_per_token, names.joined_gate_up);
  build.expert_matrices(kDown, down, i, E, config.experts_per_token, names.joined_down);
}

void shared_expert(UnitBuilder& build, const ModelConfig& config) {
  const int64_t m = config.hidden_size, i = config.shared_intermediate_size;
  const std::string module = config.expert_kind->shared;
  build.matrix(kSharedGateUp, {{module + "gate_proj.weight", i}, {module + "up_proj.weight", i}}, m);
  build.matrix(kSharedDown, {{module + "down_proj.weight", m}}, i);
  if (!config.experts_beside_mlp) build.matrix(kSharedGate, {{"mlp.shared_expert_gate.weight", 1}}, m);
}

void expert_norms(UnitBuilder& build, const ModelConfig& config) {
  const int64_t m = config.hidden_size;
  build.vector(kSharedOutNorm, {{"post_feedforward_layernorm_1.weight", m}});
  build.vector(kExpertNorm, {{"pre_feedforward_layernorm_2.weight", m}});
  build.vector(kExpertOutNorm, {{"post_feedforward_layernorm_2.weight", m}});
  build.vector(kRouterScale, {{"router.scale", m}});
  build.vector(kExpertScale, {{"router.per_expert_scale", config.num_experts}});
  // The norm behind takes the scale of one expert away, but for its epsilon.
  build.last().gradient_vanishes = config.experts_per_token == 1;
}

void gated_mlp(UnitBuilder& build, const ModelConfig& config, int64_t layer) {
  const int64_t m = config.hidden_size, i = config.intermediate_size_of(layer);
  build.matrix(kGateUp, {{"mlp.gate_proj.weight", i}, {"mlp.up_proj.weight", i}}, m);
  if (config.mlp_bias) build.vector(kGateUpBias, {{"mlp.gate_proj.bias", i}, {"mlp.up_proj.bias", i}});
  build.matrix(kDown, {{"mlp.down_proj.weight", m}}, i);
  if (config.mlp_bias) build.vector(kDownBias, {{"mlp.down_proj.bias", m}});
}

void attention(UnitBuilder& build, const ModelConfig& config, const AttentionHeads& heads) {
  const int64_t m = config.hidden_size, q = heads.query_width(), kv = heads.key_value_width();
  const int64_t d = heads.width;
  const auto projections = [&](const char* parameter) {
    std::vector<UnitBuilder::Rows> rows{{cat("self_attn.q_proj.", parameter), q + heads.gate_width()}};
    if (heads.projections_of_keys() > 0) rows.push_back({cat("self_attn.k_proj.", parameter), kv});
    if (heads.projections_of_keys() > 1) rows.push_back({cat("self_attn.v_proj.", parameter), kv});
    return rows;
  };
  build.matrix(kQkv, projections("weight"), m);
  if (config.qkv_bias) build.vector(kQkvBias, projections("bias"));
  if (config.qk_norm) {
    build.vector(kQueryNorm, {{"self_attn.q_norm.weight", d}});
    if (!heads.share_keys) build.vector(kKeyNorm, {{"self_attn.k_norm.weight", d}});
  }
  build.matrix(kOut, {{"self_attn.o_proj.weight", m}}, q);
  if (config.output_bias) build.vector(kOutBias, {{"self_attn.o_proj.bias", m}});
}

void delta_net(UnitBuilder& build, const ModelConfig& config) {
  const DeltaHeads& heads = config.delta_net->heads;
  const int64_t m = config.hidden_size, v = heads.output_columns();
  if (config.delta_net->projections == DeltaProjections::by_kind)
    build.matrix(kQkv,
                 {{"linear_attn.in_proj_qkv.weight", heads.convolved_columns()},
                  {"linear_attn.in_proj_b.weight", heads.value},
                  {"linear_attn.in_proj_a.weight", heads.value},
                  {"linear_attn.in_proj_z.weight", v}},
                 m);
  else
    build.matrix(kQkv,
                 {{"linear_attn.in_proj_qkvz.weight", heads.convolved_columns() + v},
                  {"linear_attn.in_proj_ba.weight", 2 * heads.value}},
                 m);
  build.matrix(kConvolution, {{"linear_attn.conv1d.weight", heads.convolved_columns()}},
               config.delta_net->taps);
  build.last().shape = {heads.convolved_columns(), 1, config.delta_net->taps};
  build.vector(kDecay, {{"linear_attn.A_log", heads.value}});
  build.last().initial = InitialValues::decay;
  for (const auto& [slot, name, width] : {std::tuple{kDecayBias, "linear_attn.dt_bias", heads.value},
                                          {kGatedNorm, "linear_attn.norm.weight", heads.value_width}}) {
    build.vector(slot, {{name, width}});
    build.last().initial = InitialValues::ones;
  }
  build.matrix(kOut, {{"linear_attn.out_proj.weight", m}}, v);
}

UnitSpec layer_unit(const ModelConfig& config, int64_t layer) {
  const int64_t m = config.hidden_size;
  UnitBuilder build(cat("layer.", layer), cat("model.layers.", layer, "."), kLayerSlots);
  build.vector(kAttentionNorm, {{"input_layernorm.weight", m}});
  if (config.has_delta_net(layer))
    delta_net(build, config);
  else
    attention(build, config, config.heads_of(layer));
  // Gemma 3 has Llama's name of the MLP's norm for another one.
  if (config.post_norms) build.vector(kAttentionOutNorm, {{"post_attention_layernorm.weight", m}});
  build.vector(
      kMlpNorm,
      {{config.post_norms ? "pre_feedforward_layernorm.weight" : "post_attention_layernorm.weight", m}});
  if (config.num_experts > 0)
    expert_matrices(build, config);
  else
    gated_mlp(build, config, layer);
  if (config.shared_intermediate_size > 0) shared_expert(build, config);
  if (config.experts_beside_mlp) expert_norms(build, config);
  if (config.post_norms) build.vector(kMlpOutNorm, {{"post_feedforward_layernorm.weight", m}});
  if (const int64_t p = config.layer_input_width; p > 0) {
    build.matrix(kInputGate, {{"per_layer_input_gate.weight", p}}, m);
    build.matrix(kInputProjection, {{"per_layer_projection.weight", m}}, p);
    build.vector(kInputNorm, {{"post_per_layer_input_norm.weight", m}});
  }
  if (config.layers_have_scales) {
    build.vector(kLayerScale, {{"layer_scalar", 1}});
    build.last().stays = true;
  }
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
  if (config.gated_attention)
    layout.unread_names.push_back("mtp.");  // of multi-token prediction, as in transformers
  if (!config.whole_type.empty())
    std::ranges::copy(image_tensor_names(), std::back_inserter(layout.unread_names));
  // Published files hold them, and transformers passes over them too.
  for (int64_t layer = config.num_hidden_layers - config.key_sharing_layers; layer < config.num_hidden_layers;
       ++layer)
    for (const char* name : {"k_proj.", "v_proj.", "k_norm.", "v_norm."})
      layout.unread_names.push_back(cat("layers.", layer, ".self_attn.", name));
  layout.other_forms = {
      {".lora_A.",
       "of a LoRA adapter; give the model that it belongs to, and this folder as --adapter, or "
       "make one model of both by trireme export --merge"}};
  if (config.num_experts > 0 && config.expert_kind->joined_gate_up == nullptr)
    layout.other_forms.emplace_back(
        ".experts.gate_up_proj",
        "all experts of a layer in one tensor, which is not read of this family; save the model again with "
        "save_pretrained, which writes each expert by itself unless save_original_format is False");
  layout.units.reserve(static_cast<size_t>(config.num_hidden_layers) + 3);

  UnitBuilder embedding("embedding", "model.", kFamilyEmbeddingSlots);
  embedding.matrix(kWords, {{"embed_tokens.weight", config.vocab_size}}, config.hidden_size);
  embedding.last().missing_hint =
      "a model whose head shares the embedding keeps it under this name; save it again with transformers";
  layout.units.push_back(embedding.finish());

  if (config.layer_input_width > 0) {
    UnitBuilder inputs("layer_inputs", "model.", kLayerInputsSlots);
    const int64_t columns = config.num_hidden_layers * config.layer_input_width;
    inputs.table(kInputWords, {"embed_tokens_per_layer.weight", config.layer_input_vocab}, columns);
    inputs.matrix(kInputsProjection, {{"per_layer_model_projection.weight", columns}}, config.hidden_size);
    inputs.vector(kInputsNorm, {{"per_layer_projection_norm.weight", config.layer_input_width}});
    layout.units.push_back(inputs.finish());
    layout.layer_inputs = true;
  }
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

std::vector<std::string> model_types() {
  std::vector<std::string> types;
  for (const DecoderKind& kind : decoder_kinds()) types.emplace_back(kind.model_type);
  return types;
}

// Not those of experts and routers.
std::vector<size_t> adapted_slots(const ModelConfig& config) {
  std::vector<size_t> slots{kQkv, kOut};
  const bool mixture = config.num_experts > 0;
  if (!mixture) slots.insert(slots.end(), {kGateUp, kDown});
  slots.insert(slots.end(), {kSharedGate, kInputGate, kInputProjection});
  if (mixture && config.expert_kind->shared_has_lora) slots.insert(slots.end(), {kSharedGateUp, kSharedDown});
  return slots;
}

}  // namespace
}  // namespace llama

const ModelFamily& llama_family() {
  using namespace llama;
  static constexpr ColumnMixing mixing{delta_net_forward, delta_net_backward};
  static const ModelFamily family{
      .model_types = model_types(),
      .refused_types = {{"deepseek_v2", kOtherExperts},
                        {"deepseek_v3", kOtherExperts},
                        {"gpt_oss", kOtherExperts},
                        {"llama4_text", kOtherExperts},
                        {"gemma4_unified_text", kInPythonAlone},
                        {"mistral4", kInPythonAlone}},
      .norm_eps_key = "rms_norm_eps",
      .parse = parse,
      .layout = layout,
      .embedding = make_word_embedding,
      .layer_inputs = make_layer_inputs,
      .layer = make_layer,
      .head = make_head,
      .tiles = TileFormula::decoder,
      .mixing = &mixing,
      .adapted_slots = adapted_slots,
  };
  return family;
}

}  // namespace trireme
