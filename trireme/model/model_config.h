// A Hugging Face config.json as Trireme understands it. Everything that the file asks for and that is not
// built is refused by name (ConfigError), never ignored.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/enum_names.h"
#include "trireme/base/json.h"
#include "trireme/kernels/glu_gate.h"
#include "trireme/kernels/mask.h"
#include "trireme/model/attention_heads.h"
#include "trireme/model/attention_pairs.h"
#include "trireme/model/delta_net.h"

namespace trireme {

struct ExpertKind;
struct ModelFamily;
using ModelFamilies = std::vector<const ModelFamily*>;
const ModelFamilies& model_families();  // model_family.h

enum class RopeKind { standard, linear, dynamic_ntk, yarn, llama3, proportional };
// As config.json writes them.
constexpr auto enum_names(RopeKind) {
  using enum RopeKind;
  return std::to_array<EnumName<RopeKind>>({{standard, "default"},
                                            {linear, "linear"},
                                            {dynamic_ntk, "dynamic"},
                                            {yarn, "yarn"},
                                            {llama3, "llama3"},
                                            {proportional, "proportional"}});
}

// Queries at position p of a document are multiplied by 1 + beta log(1 + floor(p / original_positions)), so
// that attention stays sharp over more keys than in pretraining (Llama 4, Ministral 3; arXiv 2501.19399).
struct QueryScaling {
  double beta = 0;
  int64_t original_positions = 0;
};

struct RopeConfig {
  RopeKind kind = RopeKind::standard;
  double theta = 10000;
  double factor = 1;
  int64_t original_max_position_embeddings = 0;  // 0: max_position_embeddings of the model
  // YaRN (arXiv 2309.00071)
  double beta_fast = 32;
  double beta_slow = 1;
  std::optional<double> attention_factor;
  std::optional<double> mscale;
  std::optional<double> mscale_all_dim;
  bool truncate = true;
  // llama3
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  // The share of a head that turns, its first values. proportional: of its pairs, as they would if all did
  // (Gemma 4); other kinds: as if the head were no wider (Qwen3.5).
  double turning_share = 1;
  std::optional<QueryScaling> query_scaling;
};

// A family's `parse` fills the sizes, mlp_kept_width, norm_eps and layer_window, and clears `rotates` where
// it has a table of positions. tie_word_embeddings and the bias fields tell on resume whether the model
// changed; what the model has is its layout's to say.
struct ModelConfig {
  const ModelFamily* family = nullptr;
  Causality causality = Causality::causal;
  int64_t vocab_size = 0;                    // V
  int64_t hidden_size = 0;                   // M
  int64_t intermediate_size = 0;             // I, of each expert where there are experts
  int64_t num_hidden_layers = 0;             // L
  int64_t num_attention_heads = 0;           // H
  int64_t num_key_value_heads = 0;           // K
  int64_t head_dim = 0;                      // D
  std::optional<AttentionHeads> full_heads;  // of layers without a window, where they have others (Gemma 4)
  int64_t max_position_embeddings = 0;
  // Positions are told to attention by rotating q and k; else a table of max_position_embeddings rows is
  // added to the embedding, and there are none beyond.
  bool rotates = true;
  int64_t type_vocab_size = 0;  // rows of BERT's token type embeddings, of which the first is used
  const ExpertKind* expert_kind = nullptr;  // of a mixture (decoder_config.h)
  int64_t num_experts = 0;        // E, the MLPs of a layer of which a token has some; 0: one for all tokens
  int64_t experts_per_token = 0;  // k
  bool expert_weights_sum_to_one = false;  // RoutingRule
  int64_t shared_intermediate_size = 0;    // of an expert that every token has beside its k; 0: there is none
  bool experts_beside_mlp = false;         // which is an MLP with norms of its own, as its k have (Gemma 4)
  int64_t mlp_kept_width = 0;              // values a token that a layer's MLP keeps for its backward
  // The last so many layers take the keys and values of the last layer of their kind before them, and may have
  // wider MLPs, which keep more (Gemma 4 E2B).
  int64_t key_sharing_layers = 0;
  int64_t sharing_intermediate_size = 0;
  int64_t sharing_mlp_kept_width = 0;
  // P of what each layer is told of its token beside x, by rows of a table of its own (Gemma 4 E2B and E4B).
  int64_t layer_input_width = 0;
  int64_t layer_input_vocab = 0;
  double norm_eps = 1e-6;
  double initializer_range = 0.02;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;
  bool output_bias = false;  // of the attention's output projection
  bool mlp_bias = false;
  std::optional<DeltaNet> delta_net;  // of layers without attention (Qwen3.5)
  std::vector<bool> delta_layers;     // which these are, of all layers; empty: none
  bool gated_attention = false;       // AttentionHeads::gated
  bool qk_norm = false;               // RMS norm of each head's q and k before rotary (Qwen3, Gemma 3)
  bool v_norm = false;                // and of each head's v, without a weight (Gemma 4)
  bool post_norms = false;            // RMS norm of what attention and the MLP add to x (Gemma 2 and later)
  bool norms_add_one = false;         // RMS norms multiply by 1 + weight (Gemma 1 to 3, Qwen3.5, Qwen3-Next)
  double embedding_scale = 1;         // rows of words are multiplied by it (Gemma)
  bool layers_have_scales =
      false;                     // what a layer gives is multiplied by a number that is not trained (Gemma 4)
  GluGate gate = GluGate::silu;  // of a gated MLP
  double logit_cap = 0;          // logits are cap tanh(logits / cap); 0: as they are (Gemma 2 and 4)
  double score_cap = 0;          // the same of attention's scores (Gemma 2)
  std::vector<int64_t> layer_window;  // one a layer; 0: full attention
  // Fields that ask training to drop activations, with their rates above 0. Nothing here does: evaluation
  // drops none, and training refuses (train_options.h).
  std::map<std::string, double> dropout;
  RopeConfig rope;
  std::optional<RopeConfig> window_rope;        // of layers with a window, where they have another (Gemma 3)
  std::optional<double> query_pre_attn_scalar;  // stands for head_dim in softmax_scale (Gemma 2 and 3)
  std::optional<int64_t> bos_token_id;
  std::optional<int64_t> eos_token_id;  // the first one when the file lists several
  std::optional<int64_t> pad_token_id;
  std::string whole_type;  // model_type of the model that this is the language model of; else empty
  Json raw;                // the file as read (of a language model inside: its own), which export writes back

  AttentionHeads heads() const {
    return {num_attention_heads, num_key_value_heads, head_dim, /*keys_are_values=*/false, gated_attention};
  }
  bool has_delta_net(int64_t layer) const {
    return !delta_layers.empty() && delta_layers[static_cast<size_t>(layer)];
  }
  bool has_full_heads(int64_t layer) const {
    return full_heads && layer_window[static_cast<size_t>(layer)] == 0;
  }
  AttentionHeads heads_of(int64_t layer) const {
    AttentionHeads heads_of_layer = has_full_heads(layer) ? *full_heads : heads();
    heads_of_layer.share_keys = shares_keys(layer);
    return heads_of_layer;
  }
  bool shares_keys(int64_t layer) const { return layer >= num_hidden_layers - key_sharing_layers; }
  // The layer whose keys and values a layer's attention takes: itself, or the last one before those that share
  // which slides or does not as this one.
  int64_t layer_of_keys(int64_t layer) const;
  bool gives_keys(int64_t layer) const;  // to a later one
  int64_t intermediate_size_of(int64_t layer) const {
    return shares_keys(layer) ? sharing_intermediate_size : intermediate_size;
  }
  int64_t mlp_kept_width_of(int64_t layer) const {
    return shares_keys(layer) ? sharing_mlp_kept_width : mlp_kept_width;
  }
  AttentionHeads heads_of_full_attention() const { return full_heads.value_or(heads()); }
  double softmax_scale() const;  // scores are q k' times it
  double width_scale() const;    // M^-1/2, which some weights are multiplied by (Gemma 4)
  bool has_window_rope(int64_t layer) const {
    return window_rope && layer_window[static_cast<size_t>(layer)] > 0;
  }
  // Labels name the next token, so that the target of position t is label t + 1; else label t itself.
  bool shifts_labels() const { return causality == Causality::causal; }
  // Those that every family has, under config.json's names.
  std::vector<std::pair<const char*, int64_t>> sizes() const;
  // Pairs of query and key that one head of every layer computes, all layers of a kind together, for a
  // document of `tokens`: half of the square where attention is causal, all of it where it is full, less where a window
  // is, none in a layer without attention; in block-sparse attention the share of the blocks that the layout
  // of a sample of so many tokens has.
  AttentionPairs attention_pairs(int64_t tokens, const SparseBlocks& sparse = {}) const;
};

// `origin` is named in errors; `families` are those that may be meant; `asked` as in ConfigKeys.
ModelConfig parse_model_config(const Json& json, const std::string& origin,
                               const ModelFamilies& families = model_families(),
                               std::set<std::string>* asked = nullptr);
// DIR/config.json; of a model that reads images too, its language model (language_model.h).
ModelConfig read_model_config(const std::filesystem::path& model_dir,
                              const ModelFamilies& families = model_families());

}  // namespace trireme
