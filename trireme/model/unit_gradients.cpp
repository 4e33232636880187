#include "trireme/model/unit_gradients.h"

#include <algorithm>
#include <utility>

#include "trireme/kernels/linear.h"
#include "trireme/model/unit_weights.h"

namespace trireme {
namespace {

void zero_beside_tensors(const at::Tensor& flat, const UnitSpec& unit) {
  std::vector<std::pair<int64_t, int64_t>> tensors;  // begin, end
  tensors.reserve(unit.tensors.size() + 1);
  for (const TensorSpec& tensor : unit.tensors)
    if (tensor.rows > 0)
      tensors.emplace_back(tensor.offset, tensor.offset + tensor.rows * std::max<int64_t>(tensor.columns, 1));
  tensors.emplace_back(flat.size(0), flat.size(0));
  std::sort(tensors.begin(), tensors.end());
  int64_t filled = 0;
  for (const auto& [begin, end] : tensors) {
    if (begin > filled) flat.narrow(0, filled, begin - filled).zero_();
    filled = end;
  }
}

}  // namespace

UnitGradients::UnitGradients(const at::Tensor& flat, const UnitSpec& unit, SumState state) {
  if (state == SumState::undefined) zero_beside_tensors(flat, unit);
  for (at::Tensor& values : bind_weights(flat, unit)) sums_.push_back({std::move(values), state});
}

UnitGradients::UnitGradients(const UnitSpec& unit, at::Device device) : frozen_(true) {
  for (const TensorSpec& tensor : unit.tensors) {
    const bool vector = tensor.rows > 0 && tensor.columns == 0;
    sums_.push_back({vector ? at::empty({tensor.rows}, at::TensorOptions().dtype(at::kFloat).device(device))
                            : at::Tensor()});
  }
}

UnitGradients::UnitGradients(const UnitSpec& unit, at::Device device, UnitGradients adapters,
                             std::vector<WholeTensor> whole)
    : UnitGradients(unit, device) {
  adapters_ = std::make_unique<UnitGradients>(std::move(adapters));
  whole_ = std::move(whole);
  for (const WholeTensor& tensor : whole_) exchange(tensor.slot, *adapters_, tensor.tensor);
}

at::Tensor& UnitGradients::to_add(size_t slot) {
  auto& [values, state] = sums_.at(slot);
  if (std::exchange(state, SumState::begun) == SumState::undefined && values.defined()) values.zero_();
  return values;
}

std::pair<at::Tensor, SumState> UnitGradients::take_sum(size_t slot) {
  auto& [values, state] = sums_.at(slot);
  return {values, std::exchange(state, SumState::begun)};
}

void UnitGradients::add_linear(size_t matrix, std::optional<size_t> bias, const at::Tensor& dy_Tn,
                               const at::Tensor& x_Tk) {
  if (frozen_ && !sums_.at(matrix).values.defined()) return;
  at::Tensor no_bias;
  auto [values, state] = take_sum(matrix);
  add_linear_gradient(values, bias ? to_add(*bias) : no_bias, dy_Tn, x_Tk, state);
}

void UnitGradients::exchange(size_t slot, UnitGradients& other, size_t other_slot) {
  std::swap(sums_.at(slot), other.sums_.at(other_slot));
}

void UnitGradients::finish() {
  if (adapters_) {
    for (const WholeTensor& tensor : whole_) exchange(tensor.slot, *adapters_, tensor.tensor);
    adapters_->finish();
  }
  if (frozen_) return;
  for (size_t slot = 0; slot < sums_.size(); ++slot) to_add(slot);
}

}  // namespace trireme
