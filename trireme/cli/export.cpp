#include "trireme/cli/export.h"

#include <iostream>
#include <optional>

#include <ATen/ATen.h>

#include "trireme/base/durable_file.h"
#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/cli/model_directory.h"
#include "trireme/cli/model_output.h"
#include "trireme/cli/unread_flags.h"
#include "trireme/cli/weight_dtype.h"
#include "trireme/model/checkpoint_files.h"
#include "trireme/model/lora_files.h"
#include "trireme/model/rope_override.h"
#include "trireme/model/whole_model_writer.h"
#include "trireme/train/base_weights.h"
#include "trireme/train/checkpoint_names.h"
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

// The layout of a checkpoint with LoRA, and what is in it.
struct SavedAdapter {
  LoraConfig lora;
  ModelLayout layout;
  CheckpointReader reader;

  SavedAdapter(const ModelConfig& config, const fs::path& source)
      : layout(make_model_layout(config)), reader(open_adapter(source)) {
    LoraOptions options;
    options.adapter = source;
    lora = add_adapters(layout, config, options);
  }
  at::Tensor values(int64_t layer) const {
    const UnitSpec& unit = layout.adapters.units.at(static_cast<size_t>(layer));
    at::Tensor flat = at::zeros({unit.elements}, at::kFloat);
    reader.read_unit(unit, flat);
    return flat;
  }
};

// What is exported would take the place of the model that it needs.
void refuse_own_model(const fs::path& out, const fs::path& model) {
  std::error_code ignored;
  if (fs::equivalent(out, model, ignored))
    throw ConfigError(
        cat("--out ", out.string(), " is the model that is read for it; choose another folder"));
}

// PEFT takes positions from the model alone.
std::string positions_note(const fs::path& source, const ModelConfig& config) {
  const fs::path file = source / kTrainerStateFile;
  const Json options = object_value(read_json(file), "options", file.string());
  if (options.value("rope_scaling", "").empty() && options.value("rope_theta", Json()).is_null()) return {};
  return cat(
      "\nit was trained with ", rope_text(config),
      ": other programs must load the model so (Trireme reads it from config.json beside the adapter), or "
      "export with --merge");
}

void export_adapter(const ExportFlags& flags, const fs::path& source) {
  const ModelConfig config = read_model_config(source);
  const SavedAdapter adapter(config, source);
  const std::string model = read_adapter_config(source).model;
  refuse_own_model(flags.out, model);
  ModelOutput output(flags.out, flags.overwrite);
  write_adapter(output.path(), adapter.layout.adapters,
                adapter_config(adapter.lora, adapter.layout.adapters, model),
                [&](int64_t layer) { return adapter.values(layer); });
  // With which it was trained: positions may be scaled.
  replace_file(output.path() / "config.json", config.raw.dump(2) + "\n");
  copy_tokenizer(source, output.path());
  output.publish();
  std::cout << "exported the LoRA adapter of " << source.string() << " ("
            << format_count(adapter.layout.trained_parameter_count()) << " parameters, float32) to "
            << flags.out.string() << "; it belongs to " << model << positions_note(source, config)
            << std::endl;
}

void export_model(const ExportFlags& flags, const fs::path& source) {
  const ModelConfig config = read_model_config(source);
  std::optional<SavedAdapter> adapter;
  fs::path model = source;
  if (is_adapter_folder(source)) {
    adapter.emplace(config, source);
    model = find_model_of_adapter(source, flags.model);
    refuse_own_model(flags.out, model);
    check_base_weights(source, model);
    static_cast<void>(with_positions_of_adapter(read_model_config(model), source));
  }
  const ModelLayout layout = make_model_layout(config);
  const fs::path whole = flags.into.empty() ? fs::path() : find_model_directory(flags.into);
  if (!whole.empty()) refuse_own_model(flags.out, whole);
  const std::string whole_type = whole.empty() ? "" : check_whole_model(whole, layout);
  const at::ScalarType dtype = !whole.empty()          ? dtype_of_whole_model(whole, layout)
                               : flags.dtype == "auto" ? dtype_of_model(config)
                                                       : parse_weight_dtype(flags.dtype);
  const CheckpointReader reader(model);
  ModelOutput output(flags.out, flags.overwrite);
  int64_t elements = 0;
  const auto unit_values = [&](int unit) {
    const UnitSpec& spec = layout.units.at(static_cast<size_t>(unit));
    at::Tensor flat = at::zeros({spec.elements}, at::kFloat);
    reader.read_unit(spec, flat);
    const std::optional<int> layer = adapter ? adapter->layout.trained_unit(unit) : std::nullopt;
    if (layer)
      merge_adapters(spec, flat, adapter->layout.adapters.units[static_cast<size_t>(*layer)],
                     adapter->values(*layer), adapter->layout.adapters);
    check_range(spec, flat, dtype);
    elements += spec.elements;
    return flat;
  };
  if (whole.empty())
    write_checkpoint(output.path(), config, layout, unit_values, dtype, source);
  else
    write_whole_model(output.path(), whole, config, layout, unit_values);
  output.publish();
  if (!whole.empty()) {
    std::cout << "exported " << source.string() << " as the language model inside " << whole.string()
              << " to " << flags.out.string() << ": a " << whole_type
              << ", whose other tensors are as they were" << std::endl;
    return;
  }
  std::cout << "exported " << source.string() << (adapter ? cat(", merged into ", model.string(), ",") : "")
            << " (" << format_count(layout.parameter_count()) << " parameters) to " << flags.out.string()
            << ": " << name_of_weight_dtype(dtype) << (flags.dtype == "auto" ? ", as the model had, " : ", ")
            << format_bytes(elements * static_cast<int64_t>(c10::elementSize(dtype))) << " of weights"
            << std::endl;
}

}  // namespace

void ExportFlags::declare(OptionList& list) {
  list.path("checkpoint", checkpoint, "a run's folder (its newest checkpoint) or one checkpoint").required();
  list.path("out", out, "the model's folder").required();
  list.flag(
      "merge", merge,
      "of a run with LoRA: make one model of the adapter and its model; else the adapter, as PEFT has it");
  list.text("model_name_or_path", model,
            "with --merge: where the model is that the adapter was trained beside, if not where it was");
  list.text(
      "into", into,
      "a model that reads images too, whose language model was trained: write it whole, with the trained "
      "one inside; else the language model by itself");
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
  const bool adapted = is_adapter_folder(source);
  refuse_unread_flag(
      parser, !adapted, "merge",
      "for the checkpoint of a whole model, which is one already; give one of a run with LoRA");
  refuse_unread_flag(parser, !flags.merge, "model_name_or_path", "without --merge; give that too");
  refuse_unread_flag(parser, adapted && !flags.merge, "dtype",
                     "for an adapter, which is written in float32; give --merge");
  refuse_unread_flag(parser, adapted && !flags.merge, "into", "for an adapter by itself; give --merge");
  refuse_unread_flag(parser, !flags.into.empty(), "dtype",
                     "with --into: values have the dtype of that model's");
  const at::NoGradGuard no_grad;
  if (adapted && !flags.merge)
    export_adapter(flags, source);
  else
    export_model(flags, source);
  return 0;
}

}  // namespace trireme
