#include "trireme/cli/init.h"

#include <filesystem>
#include <iostream>
#include <set>

#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/cli/model_output.h"
#include "trireme/cli/model_presets.h"
#include "trireme/cli/weight_dtype.h"
#include "trireme/model/checkpoint_files.h"
#include "trireme/model/initial_values.h"
#include "trireme/tokenizer/byte_level_tokenizer.h"

namespace trireme {
void InitFlags::declare(OptionList& list) {
  list.text("preset", preset, "which model, see above").required();
  list.path("out", out, "folder to write config.json and the weights into")
      .required()
      .also_called({"output", "output_dir"});
  list.count("seed", seed, at_least(0), "of the weights");
  list.choice("dtype", dtype, {"float32", "bfloat16", "float16"}, "of the weights in the file");
  list.paths("set", overrides, "key=value changes of config.json, such as num_hidden_layers=4");
  list_rope_options(list, rope);
  list.flag("overwrite", overwrite, "replace the model in a folder that is not empty");
}

int run_init(const std::vector<std::string>& arguments) {
  InitFlags options;
  std::string description =
      "Draws a fresh model by seed and writes it as a Hugging Face directory.\n\nPresets:\n";
  for (const ModelPreset& preset : model_presets())
    description += cat("  ", preset.name, std::string(16 - std::min<size_t>(15, preset.name.size()), ' '),
                       preset.description, "\n");
  OptionParser parser("init", description);
  options.declare(parser);
  if (!parser.parse(arguments)) return 0;

  const ModelPreset& preset = find_model_preset(options.preset);
  Json json = preset.config;
  for (const std::filesystem::path& assignment : options.overrides)
    apply_config_override(json, assignment.string());
  std::set<std::string> read;
  const ModelConfig plain = parse_model_config(json, cat("preset ", preset.name), model_families(), &read);
  for (const std::filesystem::path& assignment : options.overrides)
    refuse_unread_override(assignment.string(), read);
  const ModelConfig config = with_rope(plain, options.rope);
  const ModelLayout layout = make_model_layout(config);
  if (preset.byte_level_tokenizer && config.vocab_size < byte_level_vocabulary_size)
    throw ConfigError(cat("--set vocab_size=", config.vocab_size, ": the byte-level tokenizer of preset ",
                          preset.name, " needs at least ", byte_level_vocabulary_size));

  ModelOutput output(options.out, options.overwrite);
  write_checkpoint(output.path(), config, layout,
                   [&](int unit) {
                     return initial_unit_values(layout.units[static_cast<size_t>(unit)], config,
                                                static_cast<uint64_t>(options.seed));
                   },
                   parse_weight_dtype(options.dtype), {});
  if (preset.byte_level_tokenizer) write_byte_level_tokenizer(output.path());
  output.publish();
  std::cout << options.out.string() << ": " << json["model_type"].get<std::string>() << ", "
            << format_count(layout.parameter_count()) << " parameters in " << options.dtype << ", seed "
            << options.seed
            << (preset.byte_level_tokenizer ? ", with a byte-level tokenizer" : ", no tokenizer")
            << std::endl;
  return 0;
}

}  // namespace trireme
