// Llama's kind of decoders: what differs from kind to kind, and the names of their parameters. Their
// arithmetic: decoder_layer.cpp.
#include <algorithm>
#include <iterator>

#include "trireme/base/error.h"
#include "trireme/model/decoder_config.h"
#include "trireme/model/embedding.h"
#include "trireme/model/families/decoder_layer.h"
#include "trireme/model/families/decoder_units.h"
#include "trireme/model/model_family.h"

namespace trireme {
namespace llama {
namespace {

using namespace decoder;  // slots
using AttentionBias = DecoderKind::AttentionBias;
using Windows = DecoderKind::Windows;

constexpr DecoderKind kKinds[] = {
    {.model_type = "llama",
     .vocab_size = 32000,
     .intermediate_size = 11008,
     .max_position_embeddings = 2048,
     .bos_token_id = 1,
     .eos_token_id = 2,
     .heads_divide_the_width = true,
     .mlp_bias = true},
    {.model_type = "mistral",
     .vocab_size = 32000,
     .intermediate_size = 14336,
     .key_value_heads = 8,
     .max_position_embeddings = 131072,
     .bos_token_id = 1,
     .eos_token_id = 2,
     .attention_bias = AttentionBias::none,
     .windows = Windows::all_layers},
    {.model_type = "qwen2",
     .vocab_size = 151936,
     .intermediate_size = 22016,
     .key_value_heads = 32,
     .max_position_embeddings = 32768,
     .attention_bias = AttentionBias::qkv,
     .windows = Windows::chosen_layers},
    {.model_type = "qwen3",
     .vocab_size = 151936,
     .intermediate_size = 22016,
     .key_value_heads = 32,
     .max_position_embeddings = 32768,
     .head_dim = 128,
     .qk_norm = true,
     .windows = Windows::chosen_layers},
    {.model_type = "gemma",
     .vocab_size = 256000,
     .intermediate_size = 24576,
     .hidden_size = 3072,
     .num_hidden_layers = 28,
     .num_attention_heads = 16,
     .key_value_heads = 16,
     .max_position_embeddings = 8192,
     .head_dim = 256,
     .tie_word_embeddings = true,
     .bos_token_id = 2,
     .eos_token_id = 1,
     .pad_token_id = 0,
     .gemma = true},
    {.model_type = "gemma3_text",
     .vocab_size = 262208,
     .intermediate_size = 9216,
     .hidden_size = 2304,
     .num_hidden_layers = 26,
     .num_attention_heads = 8,
     .key_value_heads = 4,
     .max_position_embeddings = 131072,
     .head_dim = 256,
     .tie_word_embeddings = true,
     .bos_token_id = 2,
     .eos_token_id = 1,
     .pad_token_id = 0,
     .heads_divide_the_width = true,
     .qk_norm = true,
     .windows = Windows::by_pattern,
     .gemma = true,
     .gemma3 = true},
};

ModelConfig parse(const ConfigKeys& keys) {
  const std::string type = keys.text("model_type", "");
  const auto* const kind = std::find_if(std::begin(kKinds), std::end(kKinds),
                                        [&](const DecoderKind& row) { return type == row.model_type; });
  TRIREME_ASSERT(kind != std::end(kKinds), "no decoder is called ", type);
  ModelConfig config = parse_decoder_config(keys, *kind);
  config.mlp_kept_width = mlp_kept_width(config);
  return config;
}

UnitSpec layer_unit(const ModelConfig& config, int64_t layer) {
  const int64_t m = config.hidden_size, q = config.query_width(), kv = config.key_value_width();
  const int64_t i = config.intermediate_size, d = config.head_dim;
  UnitBuilder build(cat("layer.", layer), cat("model.layers.", layer, "."), kLayerSlots);
  build.vector(kAttentionNorm, {{"input_layernorm.weight", m}});
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
  // Gemma 3 has Llama's name of the MLP's norm for another one.
  if (config.post_norms) build.vector(kAttentionOutNorm, {{"post_attention_layernorm.weight", m}});
  build.vector(
      kMlpNorm,
      {{config.post_norms ? "pre_feedforward_layernorm.weight" : "post_attention_layernorm.weight", m}});
  build.matrix(kGateUp, {{"mlp.gate_proj.weight", i}, {"mlp.up_proj.weight", i}}, m);
  if (config.mlp_bias) build.vector(kGateUpBias, {{"mlp.gate_proj.bias", i}, {"mlp.up_proj.bias", i}});
  build.matrix(kDown, {{"mlp.down_proj.weight", m}}, i);
  if (config.mlp_bias) build.vector(kDownBias, {{"mlp.down_proj.bias", m}});
  if (config.post_norms) build.vector(kMlpOutNorm, {{"post_feedforward_layernorm.weight", m}});
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

}  // namespace
}  // namespace llama

const ModelFamily& llama_family() {
  using namespace llama;
  static const ModelFamily family{
      .model_types = {"llama", "mistral", "qwen2", "qwen3", "gemma", "gemma3_text"},
      .refused_types = {{"gemma2",
                         "the soft caps of its scores and logits are not built; gemma and gemma3_text "
                         "are"},
                        {"gemma3",
                         "it reads images too; save its text model, which is a gemma3_text "
                         "(docs/models.md)"}},
      .config_keys = {"attention_bias",
                      "attention_dropout",
                      "bos_token_id",
                      "eos_token_id",
                      "head_dim",
                      "hidden_act",
                      "hidden_activation",
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
                      "query_pre_attn_scalar",
                      "rms_norm_eps",
                      "rope_local_base_freq",
                      "rope_parameters",
                      "rope_scaling",
                      "rope_theta",
                      "sliding_window",
                      "sliding_window_pattern",
                      "tie_word_embeddings",
                      "use_cache",
                      "use_sliding_window",
                      "vocab_size"},
      .norm_eps_key = "rms_norm_eps",
      .parse = parse,
      .layout = layout,
      .embedding = make_word_embedding,
      .layer = make_layer,
      .head = make_head,
      .tiles = TileFormula::decoder,
  };
  return family;
}

}  // namespace trireme
