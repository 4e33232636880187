// The language model inside a model that also reads images (Gemma 3 from 4B on, Mistral Small 3.1, Ministral
// 3, Qwen-VL): what is trained of it, as a model of its own. Its config.json is the whole one's
// `text_config`, or lies beside the rest (Qwen2.5-VL as published). Its tensors have other names in the whole
// model's files:
//
//   by itself                      model.layers.0.mlp...                  lm_head.weight
//   inside, since transformers 5   model.language_model.layers.0.mlp...   lm_head.weight
//   inside, before                 language_model.model.layers.0.mlp...   language_model.lm_head.weight
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "trireme/base/json.h"
#include "trireme/base/safetensors.h"

namespace trireme {

struct LanguageModel {
  Json config;  // as a model of its own has it
  // model_type of the whole model; empty: it is no such model, and `config` is its file.
  std::string whole_type;
};

// `whole` is the config.json of `model_dir`. Whether the head shares the embedding is as transformers loads
// it: by what config.json says, and by whether the files hold a head with values of its own. Throws
// ConfigError where text_config is missing, no object, or of another model than the whole one has; DataError
// for weights that cannot be read.
LanguageModel language_model_of(const Json& whole, const std::string& origin,
                                const std::filesystem::path& model_dir);

// The whole config.json with the positions of its language model as `config` has them: a run may have
// stretched them.
Json with_positions_of(const Json& whole, const Json& config);

// A tensor of a language model, or of an adapter of one, under its own name or those of names_inside; null
// when absent.
const SafetensorsEntry* find_of_language_model(const SafetensorsSet& weights, const std::string& name);
// The other names, in files of the whole model.
std::vector<std::string> names_inside(const std::string& name);
// Of these, or its own, the one that transformers writes since version 5.
std::string name_in_whole_model(const std::string& name);
// Of models that have one inside.
std::vector<std::string> whole_model_types();
// Tensors with these in their names belong to what reads images.
const std::vector<std::string>& image_tensor_names();

}  // namespace trireme
