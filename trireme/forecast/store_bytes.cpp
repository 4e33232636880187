#include "trireme/forecast/store_bytes.h"

#include <algorithm>
#include <utility>

#include "trireme/base/sum_of.h"
#include "trireme/comm/collectives_bytes.h"
#include "trireme/forecast/gather_order.h"
#include "trireme/model/unit_writer.h"
#include "trireme/shard/disk_units.h"
#include "trireme/shard/optimizer_bytes.h"
#include "trireme/shard/unit_shares.h"

namespace trireme {
namespace {

// Shares come from the host of a GPU, or from a disk beside one.
bool shares_are_uploaded(const ForecastInputs& inputs) {
  return !on_device(inputs, inputs.offload.parameters);
}

// ZeRO 3: the units at work are whole, and the next one is on its way, but for what a CPU reads from a disk
// and gathers. Where shares are uploaded, the share that the next one is gathered from, and that of the one
// after it, are there as well.
// [position in the order of units]
std::vector<int64_t> gathered_elements(const ForecastInputs& inputs, const std::vector<int64_t>& shares) {
  const bool uploads = shares_are_uploaded(inputs);
  const std::vector<int64_t>& units = inputs.model.unit_elements;
  const std::vector<int> order = training_order(inputs.recompute, inputs.model.end_units());
  const bool ahead = uploads || inputs.offload.parameters != Offload::disk;
  const int head = static_cast<int>(units.size()) - 1;
  std::vector<int64_t> gathered;
  for (size_t i = 0; i < order.size(); ++i) {
    // Of a tied matrix the embedding is there beside the head.
    const bool beside_head = i > 0 && order[i - 1] == head && order[i] == kEmbeddingUnit;
    int64_t elements = units[order[i]] + (beside_head ? units[head] : 0);
    if (ahead && i + 1 < order.size()) elements += units[order[i + 1]];
    // The share that is gathered goes when its unit is whole; of a disk's none comes two units ahead.
    const size_t shares_ahead = !uploads || inputs.ranks == 1               ? 0
                                : inputs.offload.parameters == Offload::cpu ? 2
                                                                            : 1;
    for (size_t next = i + 1; next < std::min(i + 1 + shares_ahead, order.size()); ++next)
      elements += shares[order[next]];
    gathered.push_back(elements);
  }
  return gathered;
}

// Elements of an fp32 gradient that stay until its sum is finished: what travels narrowed is a copy.
int64_t whole_while_summed(const ForecastInputs& inputs, int64_t unit_elements) {
  return inputs.reduce_bytes == kFloat_bytes ? unit_elements : 0;
}

// ZeRO 3: units come and go, but for one rank's that stay, or that a CPU reads from a disk in place.
bool units_move(const ForecastInputs& inputs) {
  return inputs.zero == 3 && (inputs.ranks > 1 || shares_are_uploaded(inputs));
}

// Summed gradients stay until the step, or leave for where the optimizer is.
bool gradients_stay(const ForecastInputs& inputs) {
  return !inputs.update_in_backward && on_device(inputs, inputs.offload.optimizer);
}
bool gradients_leave(const ForecastInputs& inputs) {
  return updates_are_deferred(inputs) && !gradients_stay(inputs);
}

}  // namespace

int64_t largest_run(const std::vector<int64_t>& values, size_t width) {
  int64_t most = 0, sum = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    sum += values[i] - (i >= width ? values[i - width] : 0);
    most = std::max(most, sum);
  }
  return most;
}

int64_t on_disk_elements(const ForecastInputs& inputs, const std::vector<int64_t>& shares) {
  return largest_run(shares, disk_units_in_memory(!inputs.update_in_backward));
}

std::vector<int64_t> rank_shares(const ForecastInputs& inputs) {
  std::vector<int64_t> shares = inputs.model.unit_elements;
  if (inputs.zero > 0)
    for (int64_t& elements : shares) elements = share_of(elements, inputs.ranks, inputs.rank).elements;
  return shares;
}

ForecastInputs trained_inputs(const ForecastInputs& inputs) {
  if (!inputs.model.adapted()) return inputs;
  ForecastInputs trained = inputs;
  trained.model.unit_elements = inputs.model.adapters->unit_elements;
  trained.model.adapters.reset();
  trained.model.tied = trained.model.embedding_read_backward = false;
  trained.model.layer_input_width = 0;
  trained.zero = std::min(inputs.zero, 2);
  trained.offload.parameters = Offload::none;
  return trained;
}

int64_t parameter_bytes(const ForecastInputs& inputs) {
  const int64_t adapters = inputs.model.adapted() ? sum_of(inputs.model.adapters->unit_elements) : 0;
  if (inputs.zero < 3) return (sum_of(inputs.model.unit_elements) + adapters) * inputs.tile_bytes;
  const std::vector<int64_t> shares = rank_shares(inputs);
  const auto most_gathered = [&] { return std::ranges::max(gathered_elements(inputs, shares)); };
  if (shares_are_uploaded(inputs)) return (most_gathered() + adapters) * inputs.tile_bytes;
  const bool alone = inputs.ranks == 1;
  const int64_t gathered = alone ? 0 : most_gathered();
  if (inputs.offload.parameters != Offload::disk)
    return (sum_of(shares) + gathered + adapters) * inputs.tile_bytes;
  // Alone, a unit is opened where it was read and the next one read ahead; tied, the head's and the
  // embedding's.
  const int64_t work = alone ? largest_run(shares, 2) + (inputs.model.tied ? shares.back() : 0)
                             : gathered + std::ranges::max(shares);
  if (inputs.model.adapted()) return (work + adapters) * inputs.tile_bytes;
  const int64_t stepped = on_disk_elements(inputs, shares);
  if (updates_are_deferred(inputs)) return (work + stepped) * inputs.tile_bytes;
  // The two units that were stepped last are on their way to the disk still.
  const size_t last = inputs.update_in_backward ? 1 : shares.size() - 1;
  return std::max(work + shares[last] + shares[last - 1], stepped) * inputs.tile_bytes;
}

int64_t gradient_bytes(const ForecastInputs& inputs) {
  return StoresOverStep(inputs).most_gradient_bytes();
}

int64_t StoresOverStep::most_gradient_bytes() const {
  const int units = static_cast<int>(inputs_.model.unit_elements.size());
  int64_t most = 0;
  for (int unit = 0; unit < units; ++unit) {
    const int closed = unit + 1 < units ? unit + 1 : -1;
    const int summing = sums_go_beside_backward(inputs_) ? closed : -1;
    most = std::max(most, gradient_bytes({.open = unit, .summing = summing, .closed = closed}));
  }
  return most;
}

StoresOverStep::StoresOverStep(const ForecastInputs& inputs)
    : inputs_(inputs),
      most_parameter_bytes_(trireme::parameter_bytes(inputs)),
      parameters_move_(units_move(inputs)),
      gradients_move_(inputs.zero >= 2 || inputs.update_in_backward) {
  const ModelSizes& model = inputs.model;
  const ForecastInputs trained = trained_inputs(inputs);
  const std::vector<int64_t> shares = rank_shares(trained);
  trained_shares_.assign(model.unit_elements.size(), 0);
  std::copy(shares.begin(), shares.end(), trained_shares_.begin() + model.lowest_trained_unit());
  if (!gradients_move_)
    staying_gradients_ = sum_of(trained.model.unit_elements);
  else if (gradients_stay(inputs))
    staying_gradients_ = sum_of(trained_shares_);
  if (!parameters_move_) return;
  whole_ = gathered_elements(inputs, rank_shares(inputs));
  staying_parameters_ = most_parameter_bytes_ / inputs.tile_bytes - std::ranges::max(whole_);
  const std::vector<int> order = training_order(inputs.recompute, model.end_units());
  for (size_t i = 0; i < order.size(); ++i)
    next_.push_back(whole_[i] - model.unit_elements[static_cast<size_t>(order[i])]);
}

int64_t StoresOverStep::parameter_bytes(const UnitsInMemory& units) const {
  if (!parameters_move_) return most_parameter_bytes_;
  return (staying_parameters_ + (units.released ? next_ : whole_).at(units.gathered)) * inputs_.tile_bytes;
}

int64_t StoresOverStep::gradient_bytes(const UnitsInMemory& units) const {
  const ModelSizes& model = inputs_.model;
  int64_t elements = staying_gradients_;
  if (!gradients_move_) return elements * kFloat_bytes;
  const bool leave = gradients_leave(inputs_);
  // What earlier micro-batches came to is brought back for a unit that is opened, until it is summed.
  const auto earlier = [&](int unit) {
    return leave && inputs_.micro_batches > 1 ? trained_shares_[static_cast<size_t>(unit)] : 0;
  };
  const auto whole = [&](int unit) { return model.trained_elements(static_cast<size_t>(unit)); };
  const auto open = [&](int unit) { elements += whole(unit) + earlier(unit); };
  if (units.open >= 0) open(units.open);
  // A tied matrix is open from the head on.
  if (model.tied && units.open != kEmbeddingUnit && std::max(units.open, units.closed) > kEmbeddingUnit)
    open(kEmbeddingUnit);
  if (units.summing >= 0)
    elements += whole_while_summed(inputs_, whole(units.summing)) + earlier(units.summing);
  if (leave) elements += leaving_elements(units);
  return elements * kFloat_bytes;
}

// The unit that was closed before is stepped meanwhile, or beside a GPU copied to where it is. Its memory is let go
// when the next one is closed, which may be in the next micro-batch.
int64_t StoresOverStep::leaving_elements(const UnitsInMemory& units) const {
  const auto end = std::ssize(trained_shares_);
  auto leaving = units.summing >= 0 ? units.summing + 1 : units.closed >= 0 ? units.closed : end;
  while (leaving < end && trained_shares_[static_cast<size_t>(leaving)] == 0) ++leaving;
  if (leaving < end) return trained_shares_[static_cast<size_t>(leaving)];
  const auto lowest = static_cast<size_t>(inputs_.model.lowest_trained_unit());
  return inputs_.micro_batches > 1 ? trained_shares_[lowest] : 0;
}

bool splits_masters(const ForecastInputs& inputs) {
  return masters_are_split(inputs.bf16_values, inputs.offload.parameters, inputs.offload.optimizer);
}

int64_t master_bytes(const ForecastInputs& inputs) {
  return master_bytes(inputs.tile_bytes, splits_masters(inputs));
}

int64_t optimizer_bytes(const ForecastInputs& inputs) {
  if (inputs.model.adapted()) return optimizer_bytes(trained_inputs(inputs));
  if (!on_device(inputs, inputs.offload.optimizer)) return 0;
  const std::vector<int64_t> shares = rank_shares(inputs);
  const bool disk = inputs.offload.optimizer == Offload::disk;
  const int64_t bytes = (disk ? on_disk_elements(inputs, shares) : sum_of(shares)) *
                        (inputs.moments * inputs.state_bytes + master_bytes(inputs));
  if (inputs.adamw_kernel && inputs.moments > 0) return bytes;
  return bytes + step_piece_bytes(std::ranges::max(shares), splits_masters(inputs), inputs.moments,
                                  inputs.state_bytes, inputs.device_is_host);
}

int64_t snapshot_bytes(const ForecastInputs& inputs) {
  if (inputs.model.adapted()) return snapshot_bytes(trained_inputs(inputs));
  if (!inputs.save_in_background) return 0;
  int64_t elements = 0;
  for (size_t unit = 0; unit < inputs.model.unit_elements.size(); ++unit)
    if (writer_of_unit(static_cast<int>(unit), inputs.ranks) == inputs.rank)
      elements += inputs.model.unit_elements[unit];
  return elements * (1 + inputs.moments) * kFloat_bytes;
}

int64_t sum_buffer_bytes(const ForecastInputs& inputs, int64_t unit_elements) {
  if (inputs.ranks == 1) return 0;
  const int64_t share = share_of(unit_elements, inputs.ranks, inputs.rank).elements;
  const bool narrows = inputs.reduce_bytes != kFloat_bytes;
  const int64_t narrowed = narrows ? unit_elements * inputs.reduce_bytes : 0;
  if (inputs.rank_sums == RankSums::of_blocks)
    return narrowed + reduce_scatter_bytes(share, inputs.ranks, inputs.reduce_bytes, inputs.device_is_host);
  const int64_t buffers = inputs.rank_sums == RankSums::while_reading
                              ? read_sum_buffer_bytes(share, inputs.reduce_bytes, inputs.device_is_host)
                              : 0;
  // shard/whole_gradients.cpp
  const bool in_place = inputs.zero == 0 || (inputs.zero == 1 && !inputs.update_in_backward);
  return narrowed + buffers + (in_place ? 0 : share * kFloat_bytes);
}

int64_t begun_sum_bytes(const ForecastInputs& inputs, int64_t unit_elements) {
  const int64_t share = share_of(unit_elements, inputs.ranks, inputs.rank).elements;
  const int64_t all = sum_buffer_bytes(inputs, unit_elements);
  switch (inputs.rank_sums) {
    case RankSums::of_blocks:
      return all - share * kFloat_bytes;
    case RankSums::while_reading:
      return all - read_sum_buffer_bytes(share, inputs.reduce_bytes, inputs.device_is_host);
    default:
      return all;
  }
}

}  // namespace trireme
