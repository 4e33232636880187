#include "trireme/model/checkpoint_files.h"

#include <algorithm>
#include <set>
#include <span>

#include "trireme/base/contains.h"
#include "trireme/base/error.h"
#include "trireme/base/joined.h"
#include "trireme/model/finite_values.h"
#include "trireme/model/language_model.h"
#include "trireme/model/unit_weights.h"

namespace trireme {
namespace {

// All values of the entry, in pieces that stay small whatever the tensor's size, converted to the type of
// `flat`. Returns the index of the first that is not finite.
std::optional<int64_t> read_values(const SafetensorsEntry& entry, const at::Tensor& flat) {
  constexpr int64_t kPieceElements = int64_t{1} << 20;
  const at::ScalarType dtype = dtype_of(entry);
  const auto width = static_cast<int64_t>(c10::elementSize(dtype));
  const at::Tensor piece = at::empty({std::min(entry.elements, kPieceElements)}, at::TensorOptions(dtype));
  std::optional<int64_t> not_finite;
  for (int64_t done = 0; done < entry.elements; done += kPieceElements) {
    const int64_t count = std::min(entry.elements - done, kPieceElements);
    entry.read(done * width, piece.mutable_data_ptr(), count * width);
    const auto found = copy_and_check(piece.narrow(0, 0, count), flat.narrow(0, done, count));
    if (found && !not_finite) not_finite = done + *found;
  }
  return not_finite;
}

// What is missing, and why that may be.
[[noreturn]] void refuse_missing(const SafetensorsSet& weights, const ParameterSpec& spec) {
  for (const std::string& name : {spec.name, spec.other_name})
    if (const SafetensorsEntry* bare = weights.find(name.substr(name.find('.') + 1)))
      throw DataError(cat(bare->describe(), ": expected the name '", spec.name,
                          "'; this is a model saved without its head, load it as a causal language model (an "
                          "encoder as a masked language model) and save it again"));
  const std::vector<std::string> names = weights.names();
  if (!spec.missing_hint.empty() && !names.empty())
    throw DataError(cat(weights.at(names.front()).file().parent_path().string(), ": tensor '", spec.name,
                        "' is missing; ", spec.missing_hint));
  static_cast<void>(weights.at(spec.name));  // says what files there are
  throw InternalError(cat("tensor ", spec.name, " is there after all"));
}

}  // namespace

at::ScalarType dtype_of(const SafetensorsEntry& stored) {
  if (stored.dtype == "F32") return at::kFloat;
  if (stored.dtype == "BF16") return at::kBFloat16;
  if (stored.dtype == "F16") return at::kHalf;
  if (stored.dtype == "F64") return at::kDouble;
  throw DataError(cat(stored.describe(), ": got dtype ", stored.dtype, ", expected F32, BF16, F16 or F64",
                      "; quantized weights cannot be trained"));
}

const SafetensorsEntry* CheckpointReader::find(const std::string& name) const {
  return find_of_language_model(weights_, name);
}

std::vector<const ParameterSpec*> CheckpointReader::held_parameters(const UnitSpec& unit) const {
  std::vector<const ParameterSpec*> joined, found;
  for (const ParameterSpec& spec : unit.joined)
    if (find(spec.name) != nullptr) joined.push_back(&spec);
  for (const ParameterSpec& spec : unit.parameters) {
    const auto whole = std::ranges::find_if(joined, [&](const ParameterSpec* all) {
      return spec.offset >= all->offset && spec.offset < all->offset + all->elements;
    });
    if (whole == joined.end()) {
      found.push_back(&spec);
      continue;
    }
    if (const SafetensorsEntry* apart = find(spec.name))
      throw DataError(cat(apart->describe(), ": its values are also in '", find((*whole)->name)->name,
                          "'; expected one of both"));
    if ((*whole)->offset == spec.offset) found.push_back(*whole);
  }
  return found;
}

const SafetensorsEntry& CheckpointReader::stored(const ParameterSpec& spec) const {
  const SafetensorsEntry* found = find(spec.name);
  if (found == nullptr && !spec.other_name.empty()) found = find(spec.other_name);
  if (found == nullptr) refuse_missing(weights_, spec);
  if (found->shape != spec.shape)
    throw DataError(cat(found->describe(), ": config.json asks for the shape ", at::IntArrayRef(spec.shape),
                        "; config.json and weights do not belong together"));
  static_cast<void>(dtype_of(*found));
  return *found;
}

const SafetensorsEntry* CheckpointReader::second_stored(const ParameterSpec& spec,
                                                        const ModelLayout& layout) const {
  const SafetensorsEntry* first = find(spec.name);
  for (const TiedName& tied : layout.tied_names) {
    const SafetensorsEntry* second = tied.parameter == spec.name ? find(tied.name) : nullptr;
    if (first == nullptr || second == nullptr) continue;
    if (second->shape != first->shape || second->dtype != first->dtype) refuse_untied(*second, layout);
    return second;
  }
  return nullptr;
}

void refuse_untied(const SafetensorsEntry& second, const ModelLayout& layout) {
  for (const TiedName& tied : layout.tied_names)
    if (second.name == tied.name || contains(names_inside(tied.name), second.name))
      throw DataError(cat(second.describe(), ": differs from '", tied.parameter, "'; ", tied.differs_hint));
  throw InternalError(cat("tensor ", second.name, " is no second name"));
}

// Also in a row that no token of the data uses: training would carry it along, unseen.
void refuse_weight(const SafetensorsEntry& stored, const ParameterSpec& spec, int64_t element, double value) {
  throw DataError(
      cat(stored.describe(), ": ", not_finite_text(spec, element, value),
          "; weights must be finite numbers: the file was saved from a run that had failed, or is damaged"));
}

void CheckpointReader::read_unit(const UnitSpec& unit, at::Tensor& flat) const {
  const at::NoGradGuard no_grad;
  TRIREME_ASSERT(flat.dim() == 1 && flat.size(0) == unit.elements && at::isFloatingType(flat.scalar_type()),
                 "unit ", unit.name);
  int64_t filled = 0;
  for (const ParameterSpec* spec : held_parameters(unit)) {
    const SafetensorsEntry& entry = stored(*spec);
    flat.narrow(0, filled, spec->offset - filled)
        .zero_();  // padding is defined: it takes part in norms and sums
    const at::Tensor values = flat.narrow(0, spec->offset, spec->elements);
    if (const auto found = read_values(entry, values))
      refuse_weight(entry, *spec, *found, values[*found].item<double>());
    filled = spec->offset + spec->elements;
  }
  flat.narrow(0, filled, unit.elements - filled).zero_();
}

std::vector<std::string> CheckpointReader::unused_names(const ModelLayout& layout) const {
  std::set<std::string> used;
  // Of several names of one tensor the others are left over.
  const auto use = [&](const std::string& name) {
    if (const SafetensorsEntry* found = find(name)) used.insert(found->name);
  };
  for (const UnitSpec& unit : layout.units)
    for (const ParameterSpec* spec : held_parameters(unit))
      for (const std::string& name : {spec->name, spec->other_name}) use(name);
  for (const TiedName& second : layout.tied_names) use(second.name);
  std::vector<std::string> unused;
  for (const std::string& name : weights_.names()) {
    const auto contained = [&](const std::string& text) { return name.find(text) != std::string::npos; };
    if (used.count(name) == 0 &&
        std::none_of(layout.unread_names.begin(), layout.unread_names.end(), contained))
      unused.push_back(name);
  }
  return unused;
}

void refuse_unused(const std::vector<std::string>& names, const ModelLayout& layout,
                   const std::filesystem::path& model_dir, const char* config) {
  if (names.empty()) return;
  for (const std::string& name : names)
    for (const auto& [text, what_to_do] : layout.other_forms)
      if (name.find(text) != std::string::npos)
        throw DataError(cat(model_dir.string(), ": ", name, ": ", what_to_do));
  throw DataError(
      cat(model_dir.string(), ": the weights hold ", names.size(), " tensors that the model of ", config,
          " does not have: ", joined(std::span(names).first(std::min<size_t>(names.size(), 5))),
          names.size() > 5 ? ", ..." : "", "; expected weights and ", config, " of the same model"));
}

}  // namespace trireme
