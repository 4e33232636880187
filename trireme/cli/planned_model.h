// The model that a plan is for: a folder, a preset of `trireme init`, or org/name in the Hugging Face cache.
// Its config.json alone is read; no weights need be there.
#pragma once

#include <filesystem>
#include <string>

#include "trireme/model/model_config.h"

namespace trireme {

struct PlannedModel {
  std::string name;
  std::filesystem::path folder;  // empty: of a preset
  ModelConfig config;
};

// Throws ConfigError that lists the presets, or gives the command that downloads the model.
PlannedModel find_planned_model(const std::string& name);

}  // namespace trireme
