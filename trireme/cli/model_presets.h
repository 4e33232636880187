// The models that `trireme init` can draw: named config.json files in Hugging Face's form.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "trireme/base/json.h"

namespace trireme {

struct ModelPreset {
  std::string name;
  std::string description;
  Json config;  // written as config.json; rotary keys in the form that every transformers version reads
  bool byte_level_tokenizer;  // the tiny ones come with a tokenizer of 256 bytes and a few special tokens
};

const std::vector<ModelPreset>& model_presets();

// ConfigError with a suggestion when no preset has that name. `flag` named it; `expected` is what the flag
// takes, before the list of presets.
const ModelPreset& find_model_preset(const std::string& name, const char* flag = "--preset",
                                     const char* expected = "one of ");

// Applies `key=value`. The value is JSON, or text if it is no JSON. A dot leads into an object, as in
// rope_scaling.factor=8. ConfigError: no '=', or a dot behind what is no object.
void apply_config_override(Json& config, const std::string& assignment);
// ConfigError: its key is none of `read`.
void refuse_unread_override(const std::string& assignment, const std::set<std::string>& read);

}  // namespace trireme
