#include "trireme/model/model_layout.h"

#include <algorithm>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/round_up.h"
#include "trireme/base/sum_of.h"
#include "trireme/model/model_family.h"

namespace trireme {
namespace {

constexpr int64_t kAlignment_elements = 16;  // 64 bytes in fp32: a vector register, a cache line

int64_t count_parameters(const std::vector<UnitSpec>& units) {
  int64_t count = 0;
  for (const UnitSpec& unit : units)
    for (const ParameterSpec& parameter : unit.parameters) count += parameter.elements;
  return count;
}

}  // namespace

UnitBuilder::UnitBuilder(std::string name, std::string prefix, size_t slots) : prefix_(std::move(prefix)) {
  unit_.name = std::move(name);
  unit_.tensors.resize(slots);
}

void UnitBuilder::matrix(size_t slot, const std::vector<Rows>& parameters, int64_t columns) {
  TensorSpec& tensor = unit_.tensors.at(slot);
  TRIREME_ASSERT(tensor.rows == 0, "unit ", unit_.name, " has its slot ", slot, " twice");
  unit_.elements = round_up(unit_.elements, kAlignment_elements);
  tensor.offset = unit_.elements;
  tensor.columns = columns;
  for (const Rows& part : parameters) {
    ParameterSpec& spec = unit_.parameters.emplace_back();
    spec.name = prefix_ + part.name;
    spec.offset = unit_.elements;
    spec.shape = columns == 0 ? std::vector<int64_t>{part.rows} : std::vector<int64_t>{part.rows, columns};
    spec.elements = columns == 0 ? part.rows : part.rows * columns;
    spec.decays = columns != 0;
    unit_.elements += spec.elements;
    tensor.rows += part.rows;
  }
}

void UnitBuilder::table(size_t slot, const Rows& parameter, int64_t columns) {
  matrix(slot, {parameter}, columns);
  unit_.tensors[slot].experts_per_token = 0;
}

void UnitBuilder::expert_matrices(size_t slot, const std::vector<Rows>& parameters, int64_t columns,
                                  int64_t experts, int64_t experts_per_token, const char* joined) {
  const size_t first = unit_.parameters.size();
  matrix(slot, parameters, columns);
  TensorSpec& tensor = unit_.tensors[slot];
  tensor.experts = experts;
  tensor.experts_per_token = experts_per_token;
  if (joined == nullptr) return;
  // Where all are missing the first is the one that is named.
  unit_.parameters[first].missing_hint =
      cat("neither is '", prefix_, joined, "' there, which would hold all experts'");
  ParameterSpec& spec = unit_.joined.emplace_back();
  spec.name = prefix_ + joined;
  spec.shape = {experts, tensor.rows / experts, columns};
  spec.offset = tensor.offset;
  spec.elements = tensor.rows * columns;
}
void UnitBuilder::linear(size_t slot, const std::string& name, int64_t rows, int64_t columns) {
  matrix(slot, {{name + ".weight", rows}}, columns);
  vector(slot + 1, {{name + ".bias", rows}});
}
void UnitBuilder::layer_norm(size_t slot, const std::string& name, int64_t width) {
  vector(slot, {{name + ".weight", width}});
  vector(slot + 1, {{name + ".bias", width}});
}

UnitSpec UnitBuilder::finish() {
  unit_.elements = round_up(unit_.elements, kAlignment_elements);
  return std::move(unit_);
}

int64_t ModelLayout::parameter_count() const {
  return count_parameters(units);
}
int64_t ModelLayout::trained_parameter_count() const {
  return count_parameters(trained());
}
bool ModelLayout::trains_output() const {
  if (!adapted()) return true;
  const std::optional<int> holder = trained_unit(tied ? kEmbeddingUnit : head_unit());
  const size_t output = tied ? size_t{kWords} : size_t{kOutputMatrix};
  const auto is_output = [&](const WholeTensor& whole) { return whole.slot == output; };
  return holder && std::ranges::any_of(adapters.whole[static_cast<size_t>(*holder)], is_output);
}

std::vector<int64_t> ModelLayout::lora_elements() const {
  std::vector<int64_t> elements;
  for (size_t unit = 0; unit < adapters.units.size(); ++unit) {
    const auto of_tensor = [&](size_t number) {
      const TensorSpec& tensor = adapters.units[unit].tensors[number];
      return tensor.rows * tensor.columns;
    };
    int64_t& sum = elements.emplace_back(0);
    for (const AdaptedMatrix& matrix : adapters.matrices[unit]) {
      sum += of_tensor(matrix.a);
      for (const AdaptedRows& rows : matrix.rows) sum += of_tensor(rows.b);
    }
  }
  return elements;
}

double ModelLayout::flops_per_token() const {
  const auto of_model = static_cast<double>(matmul_parameter_count());
  if (!adapted()) return 6 * of_model;
  const TensorSpec& output = tied ? units.front().tensors[kWords] : units.back().tensors[kOutputMatrix];
  return 4 * of_model + 6 * static_cast<double>(sum_of(lora_elements())) +
         (trains_output() ? 2 * static_cast<double>(output.rows * output.columns) : 0);
}

int64_t ModelLayout::matmul_parameter_count() const {
  const TensorSpec& words = units.front().tensors[kWords];
  int64_t count = tied ? words.rows * words.columns : 0;
  for (size_t unit = 1; unit < units.size(); ++unit)
    for (const TensorSpec& tensor : units[unit].tensors)
      count += tensor.rows * tensor.columns / tensor.experts * tensor.experts_per_token;
  return count;
}

ModelLayout make_model_layout(const ModelConfig& config) {
  TRIREME_ASSERT(config.family != nullptr, "a model config of no family");
  return config.family->layout(config);
}

}  // namespace trireme
