// The language model inside a model that also reads images (Gemma 3 from 4B on, Mistral Small 3.1, Ministral 3,
// Qwen-VL): what is trained of it, as a model of its own. Its config.json is the whole one's `text_config`, or
// lies beside the rest (Qwen2.5-VL as published). Its tensors have other names in the whole model's files:
//
//   by itself                      model.layers.0.mlp...                  lm_head.weight
//   inside, since transformers 5   model.language_model.layers.0.mlp...   lm_head.weight
//   inside, before                 language_model.model.layers.0.mlp...   language_model.lm_head.weight
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "trireme/base/json.h"

namespace trireme {

struct LanguageModel {
  Json config;         // as a model of its own has it
  std::string inside;  // model_type of the whole model; empty: it is no such model, and `config` is its file
};

// `whole` is the config.json of `model_dir`. Whether the head shares the embedding is as transformers loads it:
// by both configs, and by whether the files hold a head with values of its own. Throws ConfigError where text_config is missing or no object; DataError for weights that
// cannot be read.
LanguageModel language_model_of(const Json& whole, const std::string& origin,
                                const std::filesystem::path& model_dir);

// The whole config.json with the positions of its language model as `config` has them: a run may have stretched
// them.
Json with_positions_of(const Json& whole, const Json& config);

// Other names of a tensor of a language model or of an adapter of one, in files of the whole model.
std::vector<std::string> names_inside(const std::string& name);
// Tensors with these in their names belong to what reads images.
const std::vector<std::string>& image_tensor_names();

}  // namespace trireme
