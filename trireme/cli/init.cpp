#include "trireme/cli/init.h"

#include <filesystem>
#include <iostream>

#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/cli/model_presets.h"
#include "trireme/cli/option_parser.h"
#include "trireme/data/byte_level_tokenizer.h"
#include "trireme/model/checkpoint_files.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;

struct InitOptions {
  std::string preset;
  fs::path out;
  int64_t seed = 0;
  std::string dtype = "float32";
  std::vector<fs::path> overrides;  // key=value; a list of words
  bool overwrite = false;
};

at::ScalarType weight_dtype(const std::string& name) {
  if (name == "bfloat16") return at::kBFloat16;
  return name == "float16" ? at::kHalf : at::kFloat;
}

// What an earlier model left; a tokenizer of another vocabulary would be taken for this model's.
void make_room(const fs::path& out, bool overwrite) {
  std::error_code error;
  if (fs::exists(out, error) && !fs::is_directory(out, error))
    throw ConfigError(cat("--out ", out.string(), " is a file; expected a folder to write the model into"));
  if (!fs::exists(out, error) || fs::is_empty(out, error)) return;
  if (!overwrite)
    throw ConfigError(
        cat("--out ", out.string(),
            " is not empty; choose another folder, or add --overwrite to replace the model in it"));
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                           "generation_config.json", "tokenizer.model"})
    fs::remove(out / name, error);
}

}  // namespace

int run_init(const std::vector<std::string>& arguments) {
  InitOptions options;
  std::string description =
      "Draws a fresh model by seed and writes it as a Hugging Face directory.\n\nPresets:\n";
  for (const ModelPreset& preset : model_presets())
    description += cat("  ", preset.name, std::string(14 - std::min<size_t>(13, preset.name.size()), ' '),
                       preset.description, "\n");
  OptionParser parser("init", description);
  parser.text("preset", options.preset, "which model, see above");
  parser.required("preset");
  parser.path("out", options.out, "folder to write config.json and the weights into");
  parser.required("out");
  parser.count("seed", options.seed, "of the weights");
  parser.choice("dtype", options.dtype, {"float32", "bfloat16", "float16"}, "of the weights in the file");
  parser.paths("set", options.overrides, "key=value changes of config.json, such as num_hidden_layers=4");
  parser.flag("overwrite", options.overwrite, "replace the model in a folder that is not empty");
  if (!parser.parse(arguments)) return 0;

  const ModelPreset& preset = find_model_preset(options.preset);
  Json json = preset.config;
  for (const fs::path& assignment : options.overrides) apply_config_override(json, assignment.string());
  const ModelConfig config = parse_model_config(json, cat("preset ", preset.name));
  const ModelLayout layout = make_model_layout(config);
  if (preset.byte_level_tokenizer && config.vocab_size < byte_level_vocabulary_size)
    throw ConfigError(cat("--set vocab_size=", config.vocab_size, ": the byte-level tokenizer of preset ",
                          preset.name, " needs at least ", byte_level_vocabulary_size));

  make_room(options.out, options.overwrite);
  write_checkpoint(options.out, config, layout,
                   [&](int unit) {
                     return initial_unit_values(layout.units[static_cast<size_t>(unit)], config,
                                                static_cast<uint64_t>(options.seed));
                   },
                   weight_dtype(options.dtype), {});
  if (preset.byte_level_tokenizer) write_byte_level_tokenizer(options.out);
  std::cout << options.out.string() << ": " << json["model_type"].get<std::string>() << ", "
            << format_count(config.parameter_count()) << " parameters in " << options.dtype << ", seed "
            << options.seed
            << (preset.byte_level_tokenizer ? ", with a byte-level tokenizer" : ", no tokenizer")
            << std::endl;
  return 0;
}

}  // namespace trireme
