#include "trireme/model/checkpoint_files.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/safetensors.h"
#include "trireme/model/finite_values.h"

namespace trireme {
namespace {

at::ScalarType tensor_dtype(const SafetensorsEntry& entry) {
  if (entry.dtype == "F32") return at::kFloat;
  if (entry.dtype == "BF16") return at::kBFloat16;
  if (entry.dtype == "F16") return at::kHalf;
  if (entry.dtype == "F64") return at::kDouble;
  throw DataError(cat(entry.describe(), ": got dtype ", entry.dtype, ", expected F32, BF16, F16 or F64",
                      "; quantized weights cannot be trained"));
}

// All values of the entry, in pieces that stay small whatever the tensor's size, converted to the type of `flat`.
void read_values(const SafetensorsEntry& entry, const at::Tensor& flat) {
  constexpr int64_t kPieceElements = int64_t{1} << 20;
  const at::ScalarType dtype = tensor_dtype(entry);
  const auto width = static_cast<int64_t>(c10::elementSize(dtype));
  const at::Tensor piece = at::empty({std::min(entry.elements, kPieceElements)}, at::TensorOptions(dtype));
  for (int64_t done = 0; done < entry.elements; done += kPieceElements) {
    const int64_t count = std::min(entry.elements - done, kPieceElements);
    entry.read(done * width, piece.mutable_data_ptr(), count * width);
    flat.narrow(0, done, count).copy_(piece.narrow(0, 0, count));
  }
}

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// The name that BERT's first checkpoints, converted from TensorFlow, have for a layer norm's weight or bias;
// empty for other parameters.
std::string older_name(const std::string& name) {
  for (const auto& [today, before] :
       {std::pair("LayerNorm.weight", "LayerNorm.gamma"), std::pair("LayerNorm.bias", "LayerNorm.beta")})
    if (ends_with(name, today)) return name.substr(0, name.size() - std::strlen(today)) + before;
  return "";
}

const SafetensorsEntry* find_by_any_name(const SafetensorsSet& weights, const std::string& name) {
  if (const SafetensorsEntry* entry = weights.find(name)) return entry;
  if (const std::string older = older_name(name); !older.empty()) return weights.find(older);
  // transformers ties in both directions: a file may keep either of the two names.
  return name == "cls.predictions.bias" ? weights.find("cls.predictions.decoder.bias") : nullptr;
}

// What is missing, and why that may be.
void explain_missing(const SafetensorsSet& weights, const ParameterSpec& spec) {
  if (spec.name == "model.embed_tokens.weight") {
    if (const SafetensorsEntry* tied = weights.find("lm_head.weight");
        tied != nullptr && tied->shape == spec.shape)
      throw DataError(cat(tied->describe(), ": there is no '", spec.name,
                          "' beside it; save the model again with "
                          "transformers, which keeps the embedding"));
  }
  if (spec.name == "lm_head.weight")
    throw DataError(cat(
        weights.at("model.embed_tokens.weight").file().parent_path().string(),
        ": tensor 'lm_head.weight' "
        "is missing; if the model's head shares the embedding, set tie_word_embeddings true in config.json"));
  for (const std::string prefix : {"model.", "bert."}) {
    if (spec.name.rfind(prefix, 0) != 0) continue;
    if (const SafetensorsEntry* bare = find_by_any_name(weights, spec.name.substr(prefix.size())))
      throw DataError(cat(bare->describe(), ": expected the name '", spec.name,
                          "'; this is a model saved without its head, load it as a ",
                          prefix == "bert." ? "masked" : "causal", " language model and save it again"));
  }
  if (spec.name.rfind("cls.predictions.", 0) == 0 &&
      weights.find("bert.embeddings.word_embeddings.weight") != nullptr)
    throw DataError(cat(
        weights.at("bert.embeddings.word_embeddings.weight").file().parent_path().string(), ": tensor '",
        spec.name,
        "' is missing: these weights have no head for the masked-token loss; load them as BertForMaskedLM, "
        "which begins a fresh one, and save them again"));
}

const SafetensorsEntry& find_parameter(const SafetensorsSet& weights, const ParameterSpec& spec) {
  const SafetensorsEntry* entry = find_by_any_name(weights, spec.name);
  if (entry == nullptr) explain_missing(weights, spec);
  const SafetensorsEntry& found = entry != nullptr ? *entry : weights.at(spec.name);
  if (found.shape != spec.shape) {
    std::string expected;
    for (const int64_t extent : spec.shape) expected += cat(expected.empty() ? "[" : ", ", extent);
    throw DataError(cat(found.describe(), ": config.json asks for the shape ", expected,
                        "]; config.json and weights do not belong together"));
  }
  return found;
}

// A second name of a parameter must hold the same values.
void check_tied(const SafetensorsSet& weights, const TiedName& tied) {
  const SafetensorsEntry& second = weights.at(tied.name);
  const SafetensorsEntry* first = weights.find(tied.parameter);
  if (first == nullptr || equal_values(second, *first)) return;
  if (tied.name.rfind("cls.", 0) == 0)
    throw DataError(cat(second.describe(), ": differs from '", tied.parameter,
                        "'; a bert with an output matrix or bias of its own is not supported"));
  throw DataError(cat(second.describe(),
                      ": differs from the embedding, but config.json says that they are tied; "
                      "set tie_word_embeddings false there"));
}

}  // namespace

struct CheckpointReader::Files {
  SafetensorsSet weights;
};

CheckpointReader::CheckpointReader(const std::filesystem::path& model_dir)
    : files_(new Files{SafetensorsSet(model_dir)}) {}
CheckpointReader::~CheckpointReader() = default;

void CheckpointReader::read_unit(const UnitSpec& unit, at::Tensor& flat) const {
  const at::NoGradGuard no_grad;
  TRIREME_ASSERT(flat.dim() == 1 && flat.size(0) == unit.elements && at::isFloatingType(flat.scalar_type()),
                 "unit ", unit.name);
  int64_t filled = 0;
  for (const ParameterSpec& spec : unit.parameters) {
    const SafetensorsEntry& entry = find_parameter(files_->weights, spec);
    flat.narrow(0, filled, spec.offset - filled)
        .zero_();  // padding is defined: it takes part in norms and sums
    const at::Tensor values = flat.narrow(0, spec.offset, spec.elements);
    read_values(entry, values);
    // Also in a row that no token of the data uses: training would carry it along, unseen.
    if (const auto row = not_finite_row(spec, values))
      throw DataError(cat(
          entry.describe(), ": ", *row,
          "; weights must be finite numbers: the file was saved from a run that had failed, or is damaged"));
    filled = spec.offset + spec.elements;
  }
  flat.narrow(0, filled, unit.elements - filled).zero_();
}

std::vector<std::string> CheckpointReader::unused_names(const ModelLayout& layout) const {
  std::set<std::string> used;
  for (const UnitSpec& unit : layout.units)
    for (const ParameterSpec& spec : unit.parameters) {
      used.insert(spec.name);
      if (const std::string older = older_name(spec.name); !older.empty()) used.insert(older);
    }
  const auto is_unread = [&](const std::string& name) {
    // Saved by transformers before 4.32, computed from config.json since.
    if (ends_with(name, "rotary_emb.inv_freq")) return true;
    return std::any_of(layout.unread_prefixes.begin(), layout.unread_prefixes.end(),
                       [&](const std::string& prefix) { return name.rfind(prefix, 0) == 0; });
  };
  std::vector<std::string> unused;
  for (const std::string& name : files_->weights.names()) {
    if (used.count(name) != 0 || is_unread(name)) continue;
    const auto tied = std::find_if(layout.tied_names.begin(), layout.tied_names.end(),
                                   [&](const TiedName& second) { return second.name == name; });
    if (tied == layout.tied_names.end())
      unused.push_back(name);
    else
      check_tied(files_->weights, *tied);
  }
  return unused;
}

at::Tensor initial_unit_values(const UnitSpec& unit, const ModelConfig& config, uint64_t seed) {
  const at::NoGradGuard no_grad;
  at::Tensor flat = at::zeros({unit.elements}, at::kFloat);
  for (const ParameterSpec& spec : unit.parameters) {
    at::Tensor values = parameter_view(flat, spec);
    if (spec.shape.size() == 2) {
      // FNV-1a over the name, then the seed: the same parameter gets the same values in any layout.
      uint64_t key = 0xcbf29ce484222325ULL;
      for (const unsigned char letter : spec.name) key = (key ^ letter) * 0x100000001b3ULL;
      key = (key ^ (seed + 0x9e3779b97f4a7c15ULL)) * 0x100000001b3ULL;
      at::Generator generator = at::detail::createCPUGenerator(key ^ (key >> 29));
      values.normal_(0, config.initializer_range, generator);
    } else if (spec.name.size() >= 5 && spec.name.compare(spec.name.size() - 5, 5, ".bias") != 0) {
      values.fill_(1);
    }
  }
  return flat;
}

}  // namespace trireme
