#include "trireme/cli/export.h"

#include <iostream>
#include <system_error>

#include <ATen/ATen.h>

#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/cli/checkpoint_directory.h"
#include "trireme/cli/option_parser.h"
#include "trireme/model/checkpoint_files.h"

namespace fs = std::filesystem;

namespace trireme {

int run_export(const std::vector<std::string>& arguments) {
  fs::path checkpoint, out;
  std::string dtype = "float32";
  bool overwrite = false;
  OptionParser parser("export",
                      "Turns a checkpoint into a Hugging Face model (from_pretrained of "
                      "AutoModelForCausalLM, or AutoModelForMaskedLM).");
  parser.path("checkpoint", checkpoint, "a run's folder (its newest checkpoint) or one checkpoint");
  parser.required("checkpoint");
  parser.path("out", out, "the model's folder");
  parser.required("out");
  parser.choice("dtype", dtype, {"float32", "bfloat16"}, "of the weights");
  parser.flag("overwrite", overwrite, "write into a folder that holds something already");
  if (!parser.parse(arguments)) return 0;

  std::error_code ignored;
  if (!overwrite && fs::exists(out, ignored) && !fs::is_empty(out, ignored))
    throw ConfigError(
        cat("--out ", out.string(), " is not empty; choose another folder or give --overwrite"));
  const fs::path source = find_checkpoint(checkpoint);
  const at::NoGradGuard no_grad;
  const ModelConfig config = read_model_config(source);
  const ModelLayout layout = make_model_layout(config);
  const CheckpointReader reader(source);
  const auto unit_values = [&](int unit) {
    const UnitSpec& spec = layout.units.at(static_cast<size_t>(unit));
    at::Tensor flat = at::zeros({spec.elements}, at::kFloat);
    reader.read_unit(spec, flat);
    return flat;
  };
  write_checkpoint(out, config, layout, unit_values, dtype == "float32" ? at::kFloat : at::kBFloat16, source);
  std::cout << "exported " << source.string() << " (" << format_count(config.parameter_count())
            << " parameters, " << dtype << ") to " << out.string() << std::endl;
  return 0;
}

}  // namespace trireme
