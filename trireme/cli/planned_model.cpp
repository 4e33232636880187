#include "trireme/cli/planned_model.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/nearest_name.h"
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
  std::vector<std::string> names;
  for (const ModelPreset& preset : model_presets()) {
    if (preset.name == name) return {name, {}, parse_model_config(preset.config, cat("preset ", name))};
    names.push_back(preset.name);
  }
  std::string list;
  for (const std::string& known : names) list += (list.empty() ? "" : ", ") + known;
  const auto nearest = nearest_name(name, names);
  throw ConfigError(
      cat("--model is '", quotation(name),
          "'; expected a folder with config.json, org/name in the Hugging Face cache, or a preset: ", list,
          nearest ? cat(". Did you mean '", *nearest, "'?") : std::string()));
}

}  // namespace trireme
