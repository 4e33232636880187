#include "trireme/shard/optimizer.h"

#include <algorithm>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/device/memory_account.h"
#include "trireme/kernels/split_master.h"
#include "trireme/shard/optimizer_bytes.h"
#include "trireme/shard/stochastic_rounding.h"

namespace trireme {

Optimizer::Optimizer(const OptimizerKind& kind, std::vector<FlatUnit> shares,
                     const OptimizerSettings& settings)
    : settings_(settings),
      whole_parameters_(kind.whole_parameters),
      state_names_(kind.state_names),
      shares_(std::move(shares)) {
  std::vector<int64_t> elements;
  elements.reserve(shares_.size());
  for (const FlatUnit& share : shares_) elements.push_back(share.elements);
  const MemoryScope scope(MemoryCategory::optimizer);
  for (size_t state = 0; state < state_names_.size(); ++state)
    states_.push_back(
        make_unit_tensors(elements, settings.state_dtype, settings.device, settings.offload, settings.spill));
}

void Optimizer::prefetch(int unit) {
  for (const auto& state : states_) state->prefetch(unit);
}

void Optimizer::step(int unit, const MasterShare& master, const at::Tensor& gradient,
                     const StepNumbers& numbers) {
  const FlatUnit& share = shares_.at(static_cast<size_t>(unit));
  if (share.elements == 0) return;
  const MemoryScope scope(MemoryCategory::optimizer);
  StoredShare stored{master, gradient, {}};
  for (const auto& state : states_) stored.states.push_back(state->open(unit));
  if (!step_stored(unit, share, stored, numbers)) step_in_pieces(unit, share, stored, numbers);
  for (const auto& state : states_) state->close(unit, true);
}

void Optimizer::step_in_pieces(int unit, const FlatUnit& share, const StoredShare& stored,
                               const StepNumbers& numbers) const {
  const bool on_host = stored.gradient.is_cpu();
  const bool copies = stored.master.split() || settings_.state_dtype != at::kFloat;
  // The host's vectors end with a piece. So pieces are the same whatever is copied: bits do not depend on
  // where things lie.
  const bool whole = whole_parameters_ || (!on_host && !copies);
  const int64_t piece_elements = whole ? share.elements : step_piece_elements(on_host);
  for (int64_t begin = 0; begin < share.elements; begin += piece_elements) {
    const int64_t count = std::min(piece_elements, share.elements - begin);
    const MasterShare master = stored.master.narrow(begin, count);
    StepTensors tensors{master.fp32(), stored.gradient.narrow(0, begin, count), {}};
    for (const at::Tensor& state : stored.states)
      tensors.states.push_back(state.narrow(0, begin, count).to(at::kFloat));
    FlatUnit piece = cut_unit(share, {begin, count});
    piece.begin += share.begin;
    step_share(piece, tensors, numbers);
    for (size_t i = 0; i < stored.states.size(); ++i) {
      at::Tensor state = stored.states[i].narrow(0, begin, count);
      if (state.scalar_type() != at::kFloat)
        round_stochastically(tensors.states[i], state, settings_.seed, rounding_stream(unit, i, numbers),
                             piece.begin);
    }
    if (master.split())
      split_masters(tensors.master, master.values, master.low);
    else if (master.values.defined())
      round_masters(tensors.master, master.values);
  }
}

at::Tensor Optimizer::state(int unit, const std::string& name) {
  UnitTensors& tensors = tensors_of(name);
  // What lies on disk may not be read after its close.
  at::Tensor values = tensors.open(unit).to(at::kFloat, /*non_blocking=*/false,
                                            /*copy=*/settings_.offload == Offload::disk);
  tensors.close(unit, false);
  return values;
}

void Optimizer::set_state(int unit, const std::string& name, const at::Tensor& share) {
  tensors_of(name).set(unit, share);
}

UnitTensors& Optimizer::tensors_of(const std::string& name) {
  const auto found = std::find(state_names_.begin(), state_names_.end(), name);
  TRIREME_ASSERT(found != state_names_.end(), "the optimizer has no state '", name, "'");
  return *states_[static_cast<size_t>(found - state_names_.begin())];
}

std::vector<FlatUnit> cut_units(const std::vector<FlatUnit>& units, const std::vector<UnitShare>& shares) {
  std::vector<FlatUnit> cut;
  cut.reserve(units.size());
  for (size_t unit = 0; unit < units.size(); ++unit) cut.push_back(cut_unit(units[unit], shares[unit]));
  return cut;
}

}  // namespace trireme
