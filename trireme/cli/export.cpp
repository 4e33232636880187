#include "trireme/cli/export.h"

#include <iostream>

#include <ATen/ATen.h>

#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/cli/model_output.h"
#include "trireme/cli/weight_dtype.h"
#include "trireme/model/checkpoint_files.h"
#include "trireme/train/run_directory.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

// Values beyond the range of `dtype` would become infinite.
void check_range(const UnitSpec& unit, const at::Tensor& flat, at::ScalarType dtype) {
  if (dtype == at::kFloat) return;
  const at::Tensor beyond = flat.isfinite().logical_and_(flat.to(dtype).isfinite().logical_not_());
  if (!beyond.any().item<bool>()) return;
  const bool half = dtype == at::kHalf;
  throw ConfigError(cat("--dtype ", half ? "float16: " : "bfloat16: ", unit.name, " holds the value ",
                        flat.masked_select(beyond)[0].item<float>(), ", and ",
                        half ? "float16 ends at 65504; use --dtype bfloat16 or float32"
                             : "bfloat16 ends at 3.39e38; use --dtype float32"));
}

}  // namespace

void ExportFlags::declare(OptionList& list) {
  list.path("checkpoint", checkpoint, "a run's folder (its newest checkpoint) or one checkpoint").required();
  list.path("out", out, "the model's folder").required();
  list.choice("dtype", dtype, {"auto", "float32", "bfloat16", "float16"},
              "of the weights; auto: as the model had that was trained (torch_dtype of its config.json)");
  list.flag("overwrite", overwrite, "replace the model in a folder that is not empty");
}

int run_export(const std::vector<std::string>& arguments) {
  ExportFlags flags;
  OptionParser parser("export",
                      "Turns a checkpoint into a Hugging Face model (from_pretrained of "
                      "AutoModelForCausalLM, or AutoModelForMaskedLM).");
  flags.declare(parser);
  if (!parser.parse(arguments)) return 0;

  ModelOutput::check(flags.out, flags.overwrite);
  const fs::path source = find_checkpoint(flags.checkpoint);
  const at::NoGradGuard no_grad;
  const ModelConfig config = read_model_config(source);
  const ModelLayout layout = make_model_layout(config);
  const at::ScalarType dtype =
      flags.dtype == "auto" ? dtype_of_model(config) : parse_weight_dtype(flags.dtype);
  const CheckpointReader reader(source);
  ModelOutput output(flags.out, flags.overwrite);
  int64_t elements = 0;
  const auto unit_values = [&](int unit) {
    const UnitSpec& spec = layout.units.at(static_cast<size_t>(unit));
    at::Tensor flat = at::zeros({spec.elements}, at::kFloat);
    reader.read_unit(spec, flat);
    check_range(spec, flat, dtype);
    elements += spec.elements;
    return flat;
  };
  write_checkpoint(output.path(), config, layout, unit_values, dtype, source);
  output.publish();
  std::cout << "exported " << source.string() << " (" << format_count(layout.parameter_count())
            << " parameters) to " << flags.out.string() << ": " << name_of_weight_dtype(dtype)
            << (flags.dtype == "auto" ? ", as the model had, " : ", ")
            << format_bytes(elements * static_cast<int64_t>(c10::elementSize(dtype))) << " of weights"
            << std::endl;
  return 0;
}

}  // namespace trireme
