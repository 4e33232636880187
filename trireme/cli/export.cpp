#include "trireme/cli/export.h"

#include <iostream>
#include <optional>

#include <ATen/ATen.h>

#include "trireme/base/durable_file.h"
#include "trireme/base/error.h"
#include "trireme/base/folder_entries.h"
#include "trireme/base/sizes.h"
#include "trireme/cli/model_directory.h"
#include "trireme/cli/model_output.h"
#include "trireme/cli/unread_flags.h"
#include "trireme/cli/weight_dtype.h"
#include "trireme/model/checkpoint_files.h"
#include "trireme/model/finite_values.h"
#include "trireme/model/lora_files.h"
#include "trireme/model/rope_override.h"
#include "trireme/model/tokenizer_files.h"
#include "trireme/model/whole_model_writer.h"
#include "trireme/train/base_weights.h"
#include "trireme/train/chat_files.h"
#include "trireme/train/checkpoint_names.h"
#include "trireme/train/resume.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

// Values beyond the range of `dtype` would become infinite.
void check_range(const UnitSpec& unit, const at::Tensor& flat, at::ScalarType dtype) {
  const std::optional<float> beyond = value_beyond(flat, dtype);
  if (!beyond) return;
  const bool half = dtype == at::kHalf;
  throw ConfigError(cat("--dtype ", half ? "float16: " : "bfloat16: ", unit.name, " holds the value ",
                        *beyond, ", and ",
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
  // Of Adapters::units.
  at::Tensor values(int number) const {
    const UnitSpec& unit = layout.adapters.units.at(static_cast<size_t>(number));
    at::Tensor flat = at::zeros({unit.elements}, at::kFloat);
    reader.read_unit(unit, flat);
    return flat;
  }
};

// What is exported would take the place of the model that it needs.
void refuse_own_model(const fs::path& out, const fs::path& model) {
  if (are_one(out, model))
    throw ConfigError(
        cat("--out ", out.string(), " is the model that is read for it; choose another folder"));
}

// PEFT takes positions from the model alone.
std::string positions_note(const fs::path& source, const ModelConfig& config) {
  const fs::path file = source / kTrainerStateFile;
  const Json options = object_value(read_json(file), "options", file.string());
  if (text_value(options, "rope_scaling", cat(file.string(), ": options"), "").empty() &&
      options.value("rope_theta", Json()).is_null())
    return {};
  return cat(
      "\nit was trained with ", rope_text(config),
      ": other programs must load the model so (Trireme reads it from config.json beside the adapter), or "
      "export with --merge");
}

void export_adapter(const ExportFlags& flags, const fs::path& source) {
  const ModelConfig config = read_model_config(source);
  const SavedAdapter adapter(config, source);
  const AdapterFolder folder = read_adapter_config(source);
  refuse_own_model(flags.out, folder.model);
  const std::string note = positions_note(source, config);
  ModelOutput output(flags.out, flags.overwrite);
  write_adapter(output.path(), adapter.layout, folder, [&](int number) { return adapter.values(number); });
  // With which it was trained: positions may be scaled.
  replace_file(output.path() / "config.json", config.raw.dump(2) + "\n");
  copy_tokenizer(source, output.path());
  output.publish();
  std::cout << "exported the LoRA adapter of " << source.string() << " ("
            << format_count(adapter.layout.trained_parameter_count()) << " parameters, float32) to "
            << flags.out.string() << "; it belongs to " << folder.model
            << (folder.whole_type.empty() ? "" : cat(", a ", folder.whole_type, " that reads images")) << note
            << std::endl;
}

// A checkpoint as a model: its own weights, or those of the model beside which its adapter was trained.
class TrainedModel {
 public:
  TrainedModel(const ExportFlags& flags, const fs::path& source)
      : config_(read_model_config(source)),
        layout_(make_model_layout(config_)),
        model_(is_adapter_folder(source) ? find_model_of_adapter(source, flags.model) : source),
        reader_(model_) {
    if (model_ == source) return;
    adapter_.emplace(config_, source);
    refuse_own_model(flags.out, model_);
    check_base_weights(source, model_);
    static_cast<void>(with_positions_of_adapter(read_model_config(model_), source));
  }

  const ModelConfig& config() const { return config_; }
  const ModelLayout& layout() const { return layout_; }
  std::string merged_text() const {
    return adapter_ ? cat(", merged into ", model_.string(), ",") : std::string();
  }
  // fp32, of a whole unit.
  at::Tensor values(int unit) const {
    const UnitSpec& spec = layout_.units.at(static_cast<size_t>(unit));
    at::Tensor flat = at::zeros({spec.elements}, at::kFloat);
    reader_.read_unit(spec, flat);
    if (const auto number = adapter_ ? adapter_->layout.trained_unit(unit) : std::nullopt)
      merge_adapters(spec, flat, adapter_->layout.adapters, static_cast<size_t>(*number),
                     adapter_->values(*number));
    return flat;
  }

 private:
  ModelConfig config_;
  ModelLayout layout_;
  fs::path model_;
  CheckpointReader reader_;
  std::optional<SavedAdapter> adapter_;
};

void export_model(const ExportFlags& flags, const fs::path& source) {
  const TrainedModel trained(flags, source);
  const at::ScalarType dtype =
      flags.dtype == "auto" ? dtype_of_model(trained.config()) : parse_weight_dtype(flags.dtype);
  ModelOutput output(flags.out, flags.overwrite);
  int64_t elements = 0;
  const auto unit_values = [&](int unit) {
    at::Tensor flat = trained.values(unit);
    check_range(trained.layout().units[static_cast<size_t>(unit)], flat, dtype);
    elements += flat.numel();
    return flat;
  };
  write_checkpoint(output.path(), trained.config(), trained.layout(), unit_values, dtype, source);
  output.publish();
  std::cout << "exported " << source.string() << trained.merged_text() << " ("
            << format_count(trained.layout().parameter_count()) << " parameters) to " << flags.out.string()
            << ": " << name_of_weight_dtype(dtype) << (flags.dtype == "auto" ? ", as the model had, " : ", ")
            << format_bytes(elements * static_cast<int64_t>(c10::elementSize(dtype))) << " of weights"
            << std::endl;
}

void export_into_whole_model(const ExportFlags& flags, const fs::path& source) {
  const TrainedModel trained(flags, source);
  const fs::path whole = find_model_directory(flags.into);
  refuse_own_model(flags.out, whole);
  const std::string type = check_whole_model(whole, trained.config());
  ModelOutput output(flags.out, flags.overwrite);
  write_whole_model(output.path(), whole, trained.config(), trained.layout(),
                    [&](int unit) { return trained.values(unit); });
  // Beside the weights the folder is the whole model's, which knows nothing of the chats.
  const ChatFiles files = chat_files(saved_chat_format(source), whole);
  for (const auto& [name, text] : files.texts) replace_file(output.path() / name, text);
  output.publish();
  std::cout << "exported " << source.string() << trained.merged_text() << " as the language model inside "
            << whole.string() << " to " << flags.out.string() << ": a " << type
            << ", whose other tensors are as they were" << std::endl;
  for (const std::string& note : files.notes) std::cout << note << std::endl;
}

}  // namespace

void ExportFlags::declare(OptionList& list) {
  list.path("checkpoint", checkpoint, "a run's folder (its newest checkpoint) or one checkpoint").required();
  list.path("out", out, "the model's folder").required().also_called({"output", "output_dir"});
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
                      "AutoModelForCausalLM, or AutoModelForMaskedLM; with --into of "
                      "AutoModelForImageTextToText).");
  flags.declare(parser);
  if (!parser.parse(arguments)) return 0;

  ModelOutput::check(flags.out, flags.overwrite);
  const fs::path source =
      find_checkpoint(flags.checkpoint, [](const std::string& note) { std::cerr << note << std::endl; }).path;
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
  else if (!flags.into.empty())
    export_into_whole_model(flags, source);
  else
    export_model(flags, source);
  return 0;
}

}  // namespace trireme
