#include "trireme/model/checkpoint_files.h"

#include <cstring>
#include <fstream>
#include <memory>
#include <set>

#include "trireme/base/error.h"
#include "trireme/base/safetensors.h"

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

// The values where they lie in the map, or a copy where the file's layout leaves them misaligned.
at::Tensor entry_tensor(const SafetensorsEntry& entry) {
  const at::ScalarType dtype = tensor_dtype(entry);
  const auto address = reinterpret_cast<uintptr_t>(entry.data);
  if (address % c10::elementSize(dtype) == 0)
    return at::from_blob(const_cast<std::byte*>(entry.data), entry.shape, at::TensorOptions(dtype));
  at::Tensor copy = at::empty(entry.shape, at::TensorOptions(dtype));
  std::memcpy(copy.mutable_data_ptr(), entry.data, static_cast<size_t>(entry.bytes));
  return copy;
}

const SafetensorsEntry& find_parameter(const SafetensorsSet& weights, const ParameterSpec& spec) {
  const SafetensorsEntry* entry = weights.find(spec.name);
  if (entry == nullptr && spec.name == "model.embed_tokens.weight") {
    // transformers ties in both directions: a file may keep either of the two names.
    if (const SafetensorsEntry* tied = weights.find("lm_head.weight");
        tied != nullptr && tied->shape == spec.shape)
      throw DataError(cat(tied->describe(), ": there is no '", spec.name,
                          "' beside it; save the model again with "
                          "transformers, which keeps the embedding"));
  }
  if (entry == nullptr && spec.name == "lm_head.weight")
    throw DataError(cat(
        weights.at("model.embed_tokens.weight").file.parent_path().string(),
        ": tensor 'lm_head.weight' "
        "is missing; if the model's head shares the embedding, set tie_word_embeddings true in config.json"));
  if (entry == nullptr && spec.name.rfind("model.", 0) == 0 && weights.find(spec.name.substr(6)) != nullptr)
    throw DataError(cat(
        weights.at(spec.name.substr(6)).describe(), ": expected the name '", spec.name,
        "'; this is a model saved without its head, load it as a causal language model and save it again"));
  const SafetensorsEntry& found = weights.at(spec.name);
  if (found.shape != spec.shape) {
    std::string expected;
    for (const int64_t extent : spec.shape) expected += cat(expected.empty() ? "[" : ", ", extent);
    throw DataError(cat(found.describe(), ": config.json asks for the shape ", expected,
                        "]; config.json and weights do not belong together"));
  }
  return found;
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
    const at::Tensor values = entry_tensor(find_parameter(files_->weights, spec));
    flat.narrow(0, filled, spec.offset - filled)
        .zero_();  // padding is defined: it takes part in norms and sums
    parameter_view(flat, spec).copy_(values);
    filled = spec.offset + spec.elements;
  }
  flat.narrow(0, filled, unit.elements - filled).zero_();
}

std::vector<std::string> CheckpointReader::unused_names(const ModelLayout& layout) const {
  std::set<std::string> used;
  for (const UnitSpec& unit : layout.units)
    for (const ParameterSpec& spec : unit.parameters) used.insert(spec.name);
  const auto is_rotary_buffer = [](const std::string& name) {
    const std::string end =
        "rotary_emb.inv_freq";  // saved by transformers before 4.32, computed from config.json since
    return name.size() >= end.size() && name.compare(name.size() - end.size(), end.size(), end) == 0;
  };
  std::vector<std::string> unused;
  for (const std::string& name : files_->weights.names()) {
    if (used.count(name) != 0 || is_rotary_buffer(name)) continue;
    if (layout.tied && name == "lm_head.weight") {
      const SafetensorsEntry& head = files_->weights.at(name);
      const SafetensorsEntry* embedding = files_->weights.find("model.embed_tokens.weight");
      if (embedding == nullptr ||
          (head.dtype == embedding->dtype && head.shape == embedding->shape &&
           std::memcmp(head.data, embedding->data, static_cast<size_t>(head.bytes)) == 0))
        continue;
      throw DataError(cat(head.describe(),
                          ": differs from the embedding, but config.json says that they are tied; "
                          "set tie_word_embeddings false there"));
    }
    unused.push_back(name);
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
