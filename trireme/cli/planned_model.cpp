#include "trireme/cli/planned_model.h"

#include "trireme/base/error.h"
#include "trireme/cli/model_directory.h"
#include "trireme/cli/model_presets.h"

namespace trireme {

PlannedModel find_planned_model(const std::string& name) {
  std::error_code ignored;
  const bool is_folder = std::filesystem::is_directory(name, ignored);
  if (is_folder || name.find('/') != std::string::npos) {
    const std::filesystem::path folder = find_model_directory(name);
    return {name, folder, read_model_config(folder)};
  }
  const ModelPreset& preset = find_model_preset(
      name, "--model", "a folder with config.json, org/name in the Hugging Face cache, or a preset: ");
  return {name, {}, parse_model_config(preset.config, cat("preset ", name))};
}

}  // namespace trireme
