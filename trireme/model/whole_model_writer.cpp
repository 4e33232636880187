#include "trireme/model/whole_model_writer.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "trireme/base/durable_file.h"
#include "trireme/base/error.h"
#include "trireme/base/safetensors_writer.h"
#include "trireme/model/checkpoint_files.h"
#include "trireme/model/language_model.h"

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
  for (int unit = 0; unit < static_cast<int>(layout.units.size()); ++unit)
    for (const ParameterSpec& spec : layout.units[static_cast<size_t>(unit)].parameters) {
      add(spec.name, {unit, &spec});
      for (const TiedName& second : layout.tied_names)
        if (second.parameter == spec.name) add(second.name, {unit, &spec});
    }
  return found;
}

std::vector<std::string> weight_files(const fs::path& whole) {
  const fs::path index = whole / kWeightIndexFile;
  if (!fs::exists(index)) return {kWeightsFile};
  std::set<std::string> names;
  const Json listed = object_value(read_json(index), "weight_map", index.string());
  for (const Json& file : listed) names.insert(file.get<std::string>());
  return {names.begin(), names.end()};
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

  void write_file(const fs::path& from, const fs::path& to) {
    const SafetensorsFile file(from);
    std::vector<const SafetensorsEntry*> entries;
    for (const auto& [name, entry] : file.entries()) entries.push_back(&entry);
    std::ranges::sort(entries, {}, &SafetensorsEntry::offset);
    std::vector<SafetensorsSpec> specs;
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
    const at::Tensor values = parameter_view(flat_, *found->second.spec).to(dtype_of(entry)).contiguous();
    writer.write(entry.name, values.const_data_ptr(), entry.bytes);
  }

  std::map<std::string, ParameterOfUnit> parameters_;
  const std::function<at::Tensor(int unit)>& unit_flat_;
  std::optional<int> unit_;  // whose values `flat_` holds
  at::Tensor flat_;
};

std::vector<std::string> parameters_of(const ModelLayout& layout) {
  std::vector<std::string> parameters;
  for (const UnitSpec& unit : layout.units)
    for (const ParameterSpec& spec : unit.parameters)
      parameters.push_back(cat(spec.name, " ", at::IntArrayRef(spec.shape)));
  return parameters;
}

// "got PARAMETER SHAPE, expected PARAMETER SHAPE"
std::optional<std::string> first_difference(const ModelLayout& got, const ModelLayout& expected) {
  const std::vector<std::string> of_got = parameters_of(got), of_expected = parameters_of(expected);
  const auto [at_got, at_expected] = std::ranges::mismatch(of_got, of_expected);
  if (at_got == of_got.end() && at_expected == of_expected.end()) return std::nullopt;
  return cat("got ", at_got == of_got.end() ? "no more" : *at_got, ", expected ",
             at_expected == of_expected.end() ? "no more" : *at_expected);
}

// Configurations of tokenizers and of what prepares images.
bool goes_along(const fs::path& file) {
  static const std::set<std::string> kinds{".json", ".jinja", ".txt", ".model"};
  const std::string name = file.filename();
  return kinds.contains(file.extension()) && name != "config.json" && name != kWeightIndexFile;
}

}  // namespace

std::string check_whole_model(const fs::path& whole, const ModelLayout& layout) {
  const ModelConfig config = read_model_config(whole);
  if (config.inside.empty())
    throw ConfigError(cat(whole.string(),
                          ": this model has no language model inside; expected one that reads images too, "
                          "such as a gemma3 or a mistral3. A model of text alone is exported by itself"));
  if (const auto differs = first_difference(make_model_layout(config), layout))
    throw ConfigError(cat(whole.string(), ": the language model inside is not of the checkpoint's sizes: ",
                          *differs, "; expected the model from which the run began"));
  const CheckpointReader reader(whole);
  for (const UnitSpec& unit : layout.units)
    for (const ParameterSpec& spec : unit.parameters) static_cast<void>(reader.stored(spec));
  return config.inside;
}

at::ScalarType dtype_of_whole_model(const fs::path& whole, const ModelLayout& layout) {
  return dtype_of(CheckpointReader(whole).stored(layout.units.front().parameters.front()));
}

void write_whole_model(const fs::path& out, const fs::path& whole, const ModelConfig& config,
                       const ModelLayout& layout, const std::function<at::Tensor(int unit)>& unit_flat) {
  const at::NoGradGuard no_grad;
  WholeModelWriter writer(layout, unit_flat);
  for (const std::string& name : weight_files(whole)) writer.write_file(whole / name, out / name);
  if (fs::exists(whole / kWeightIndexFile)) copy_durable(whole / kWeightIndexFile, out / kWeightIndexFile);
  for (const auto& entry : fs::directory_iterator(whole))
    if (entry.is_regular_file() && goes_along(entry.path()))
      copy_durable(entry.path(), out / entry.path().filename());
  const Json json = with_positions_of(read_json(whole / "config.json"), config.raw);
  replace_file(out / "config.json", json.dump(2) + "\n");
}

}  // namespace trireme
