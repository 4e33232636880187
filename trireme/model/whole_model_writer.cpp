#include "trireme/model/whole_model_writer.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "trireme/base/contains.h"
#include "trireme/base/durable_file.h"
#include "trireme/base/error.h"
#include "trireme/base/folder_entries.h"
#include "trireme/base/safetensors_writer.h"
#include "trireme/model/checkpoint_files.h"
#include "trireme/model/computed_fields.h"
#include "trireme/model/finite_values.h"
#include "trireme/model/language_model.h"
#include "trireme/model/lora_files.h"
#include "trireme/model/tokenizer_files.h"
#include "trireme/model/tokenizer_length.h"
#include "trireme/model/unit_weights.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

struct ParameterOfUnit {
  int unit = 0;
  const ParameterSpec* spec = nullptr;
};

// By every name that a file may have for it.
std::map<std::string, ParameterOfUnit> parameters_by_name(const ModelLayout& layout) {
  std::map<std::string, ParameterOfUnit> found;
  const auto add = [&](const std::string& name, const ParameterOfUnit& parameter) {
    found.emplace(name, parameter);
    for (const std::string& inside : names_inside(name)) found.emplace(inside, parameter);
  };
  for (int unit = 0; unit < static_cast<int>(layout.units.size()); ++unit) {
    const UnitSpec& of_unit = layout.units[static_cast<size_t>(unit)];
    for (const ParameterSpec& spec : of_unit.parameters) {
      add(spec.name, {unit, &spec});
      for (const TiedName& second : layout.tied_names)
        if (second.parameter == spec.name) add(second.name, {unit, &spec});
    }
    for (const ParameterSpec& spec : of_unit.joined) add(spec.name, {unit, &spec});
  }
  return found;
}

void copy_values(const SafetensorsEntry& from, SafetensorsWriter& to) {
  constexpr int64_t kPieceBytes = int64_t{1} << 24;
  std::vector<char> piece(static_cast<size_t>(std::min(kPieceBytes, from.bytes)));
  for (int64_t done = 0; done < from.bytes; done += kPieceBytes) {
    const int64_t count = std::min(kPieceBytes, from.bytes - done);
    from.read(done, piece.data(), count);
    to.write(from.name, piece.data(), count);
  }
}

class WholeModelWriter {
 public:
  WholeModelWriter(const ModelLayout& layout, const std::function<at::Tensor(int unit)>& unit_flat)
      : parameters_(parameters_by_name(layout)), unit_flat_(unit_flat) {}

  void write_file(const SafetensorsFile& file, const fs::path& to) {
    std::vector<const SafetensorsEntry*> entries;
    for (const auto& [name, entry] : file.entries()) entries.push_back(&entry);
    std::ranges::sort(entries, {}, &SafetensorsEntry::offset);
    std::vector<SafetensorsSpec> specs;
    specs.reserve(entries.size());
    for (const SafetensorsEntry* entry : entries) specs.push_back({entry->name, entry->dtype, entry->shape});
    SafetensorsWriter writer(to, specs, file.metadata());
    for (const SafetensorsEntry* entry : entries) write_entry(*entry, writer);
    writer.finish();
  }

 private:
  void write_entry(const SafetensorsEntry& entry, SafetensorsWriter& writer) {
    const auto found = parameters_.find(entry.name);
    if (found == parameters_.end()) return copy_values(entry, writer);
    if (unit_ != found->second.unit) {
      flat_ = unit_flat_(found->second.unit);
      unit_ = found->second.unit;
    }
    const ParameterSpec& spec = *found->second.spec;
    TRIREME_ASSERT(entry.shape == spec.shape, entry.name, " has another shape");  // check_whole_model
    const at::Tensor trained = parameter_view(flat_, spec);
    const at::ScalarType dtype = dtype_of(entry);
    if (const std::optional<float> beyond = value_beyond(trained, dtype))
      throw ConfigError(
          cat(entry.describe(), ": the trained value ", *beyond,
              " is beyond the range of its dtype; export the language model by itself, with --dtype "
              "float32 or bfloat16"));
    const at::Tensor values = trained.to(dtype).contiguous();
    writer.write(entry.name, values.const_data_ptr(), entry.bytes);
  }

  std::map<std::string, ParameterOfUnit> parameters_;
  const std::function<at::Tensor(int unit)>& unit_flat_;
  std::optional<int> unit_;  // whose values `flat_` holds
  at::Tensor flat_;
};

// Beside the tokenizer: the configurations of what prepares images, the model card and the licence.
bool goes_along(const fs::path& file) {
  static const std::set<std::string> kinds{".json", ".jinja", ".txt", ".model", ".md"};
  const std::string name = file.filename();
  const bool is_licence = name.starts_with("LICENSE") || name.starts_with("NOTICE");
  return (is_licence || kinds.contains(file.extension())) && name != "config.json" &&
         name != kAdapterConfigFile && !name.ends_with(".index.json") &&
         !contains(tokenizer_file_names(), name);
}

}  // namespace

std::string check_whole_model(const fs::path& whole, const ModelConfig& trained) {
  const ModelConfig config = read_model_config(whole);
  if (config.whole_type.empty())
    throw ConfigError(cat(whole.string(),
                          ": this model has no language model inside; expected one that reads images too, "
                          "such as a gemma3 or a mistral3. A model of text alone is exported by itself"));
  if (const auto differs = difference_beside_positions(trained, config))
    throw ConfigError(cat(whole.string(), ": the language model inside has ", differs->field, " ",
                          quotation(differs->second), ", and the checkpoint ", quotation(differs->first),
                          "; expected the model from which the run began"));
  const ModelLayout layout = make_model_layout(config);
  const CheckpointReader reader(whole);
  for (const UnitSpec& unit : layout.units)
    for (const ParameterSpec* spec : reader.held_parameters(unit)) static_cast<void>(reader.stored(*spec));
  refuse_unused(reader.unused_names(layout), layout, whole);
  return config.whole_type;
}

void write_whole_model(const fs::path& out, const fs::path& whole, const ModelConfig& config,
                       const ModelLayout& layout, const std::function<at::Tensor(int unit)>& unit_flat) {
  const at::NoGradGuard no_grad;
  WholeModelWriter writer(layout, unit_flat);
  const SafetensorsSet weights(whole);
  for (const auto& file : weights.files()) writer.write_file(*file, out / file->path().filename());
  if (!weights.is_single()) copy_durable(whole / kWeightIndexFile, out / kWeightIndexFile);
  for (const fs::path& file : entries_of(whole))
    if (is_file(file) && goes_along(file)) copy_durable(file, out / file.filename());
  copy_tokenizer(whole, out);
  const Json json = with_positions_of(read_json(whole / "config.json"), config.raw);
  replace_file(out / "config.json", json.dump(2) + "\n");
  lengthen_tokenizer(whole, out);
}

}  // namespace trireme
