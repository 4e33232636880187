// Another rotary embedding than the model's config.json says: --rope_scaling and --rope_theta.
//
//   yarn:16            kind and factor: default, linear:N, dynamic:N, yarn:N, llama3:N, proportional:N
//   {"rope_type": "yarn", "factor": 16, "beta_fast": 20}     as config.json of transformers has it
//
// The factor stretches the length that the model was first trained on: original_max_position_embeddings of
// its config.json, else max_position_embeddings (of a Gemma 3 that was stretched, over its factor). The
// result is a config.json that transformers reads:
//
//   linear, yarn, llama3   max_position_embeddings = factor x original, which is recorded
//   dynamic                max_position_embeddings = original, from which transformers stretches
//   theta alone            max_position_embeddings grows to the length that is asked for
//
// A model that scales its queries by their position (QueryScaling) goes on doing so. KIND:FACTOR of the kind
// that the model has already changes its factor alone: its betas, mscales and attention_factor stay.
//
// Of a model whose sliding layers have a rotary embedding of their own (Gemma 3) it is that of the others.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "trireme/base/option_list.h"
#include "trireme/model/model_config.h"

namespace trireme {

struct RopeOverride {
  std::string scaling;          // empty: as config.json says
  std::optional<double> theta;  // none: as config.json says
  int64_t longest_tokens = 0;   // of a sample; positions where theta alone is given

  bool given() const { return !scaling.empty() || theta; }
};

void list_rope_options(OptionList& list, RopeOverride& rope);

// `config` as it is where nothing is given. Throws ConfigError: text that is none of these forms, a model
// that does not rotate, numbers that parse_rope_config refuses.
ModelConfig with_rope(const ModelConfig& config, const RopeOverride& rope);

// The same for a model that came from `before` by other overrides: with the length of pretraining written
// out.
RopeOverride pinned(const RopeOverride& rope, const ModelConfig& before);

// The length that the model was first trained on, as far as its config.json says.
int64_t original_positions(const ModelConfig& config);
// Empty, or what the model's config.json lacks for its positions to be stretched further.
std::string lacking_original_positions(const ModelConfig& config);
// The number of tokens that the model's positions reach: max_position_embeddings, or the length to which its
// rope scaling stretches them.
int64_t position_reach(const ModelConfig& config);

// "yarn:16", which stretches the positions to `tokens`; "linear:16" of a Gemma 3 that was stretched so. Throws
// ConfigError: lacking_original_positions.
std::string rope_scaling_to_reach(const ModelConfig& config, int64_t tokens);

// "rope yarn x 16 of 8,192 positions, theta 500000: 131,072 positions"
std::string rope_text(const ModelConfig& config);

// Empty, or that the model's publisher stretches it from another length than `config` has, and how to ask for
// theirs.
std::string published_scaling_note(const ModelConfig& config);

}  // namespace trireme
