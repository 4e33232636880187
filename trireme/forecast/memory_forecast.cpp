#include "trireme/forecast/memory_forecast.h"

#include <algorithm>

#include "trireme/base/sum_of.h"
#include "trireme/forecast/layer_buffers.h"
#include "trireme/forecast/sequence_ranks.h"
#include "trireme/forecast/store_bytes.h"
#include "trireme/memory/pinned_piece.h"

namespace trireme {
namespace {

// Each store's most of a step, and what NCCL holds throughout.
MemoryBytes bytes_of_stores(const ForecastInputs& inputs, const StoresOverStep& over_step) {
  using enum MemoryCategory;
  MemoryBytes stores;
  stores[parameters] = over_step.most_parameter_bytes();
  stores[gradients] = over_step.most_gradient_bytes();
  stores[optimizer] = optimizer_bytes(inputs);
  stores[communication] = peer_buffers_of_rank_bytes(inputs);
  if (inputs.device_is_host) stores[snapshot] = snapshot_bytes(inputs);
  return stores;
}

MemoryBytes bytes_at(const MemorySnapshot& snapshot, MemoryBytes stores, const StoresOverStep& over_step) {
  stores[MemoryCategory::parameters] = over_step.parameter_bytes(snapshot.units);
  stores[MemoryCategory::gradients] = over_step.gradient_bytes(snapshot.units);
  for (const MemoryCategory category : kAllMemoryCategories) stores[category] += snapshot.bytes[category];
  return stores;
}

}  // namespace

MemoryForecast memory_forecast(const ForecastInputs& inputs) {
  const StoresOverStep over_step(inputs);
  const MemoryBytes stores = bytes_of_stores(inputs, over_step);
  MemoryForecast forecast{stores, 0, host_memory_bytes(inputs), {}};
  for (const MemorySnapshot& snapshot : memory_timeline(inputs, /*every_layer=*/false)) {
    for (const MemoryCategory category : kAllMemoryCategories)
      forecast.peak[category] =
          std::max(forecast.peak[category], stores[category] + snapshot.bytes[category]);
    const MemoryBytes bytes = bytes_at(snapshot, stores, over_step);
    if (bytes.total() <= forecast.peak_total_bytes) continue;
    forecast.peak_total_bytes = bytes.total();
    forecast.fullest = snapshot;
    forecast.fullest.bytes = bytes;
  }
  return forecast;
}

MemoryBytes host_memory_bytes(const ForecastInputs& inputs) {
  using enum MemoryCategory;
  MemoryBytes bytes;
  if (inputs.device_is_host) return bytes;
  bytes[snapshot] = snapshot_bytes(inputs);
  const bool adapted = inputs.model.adapted();
  const std::vector<int64_t> shares = rank_shares(inputs), trained = rank_shares(trained_inputs(inputs));
  const int64_t largest_share = largest_run(trained, 1);
  const bool steps_on_host = updates_are_deferred(inputs);
  const Offload offload = inputs.zero == 3 ? inputs.offload.parameters : Offload::none;
  if (offload == Offload::cpu) {
    bytes[parameters] = sum_of(shares) * inputs.tile_bytes;
  } else if (offload == Offload::disk) {
    // The passes hold the share that was uploaded last, and while they go on the one that is read ahead.
    const bool beside_passes = adapted || steps_on_host || inputs.update_in_backward;
    const int64_t stepped = adapted ? 0 : on_disk_elements(inputs, shares);
    bytes[parameters] = (stepped + largest_run(shares, beside_passes ? 2 : 1)) * inputs.tile_bytes;
  }
  if (steps_on_host && (adapted || offload == Offload::none)) {
    // Stepped masters are narrowed in a piece of pinned memory, on their way to values on the device. Of fp32
    // values, which have no masters, a copy is stepped.
    bytes[parameters] += std::min(largest_share * inputs.tile_bytes, kPinnedPiece_bytes) +
                         (inputs.tile_bytes == kFloat_bytes ? largest_share * kFloat_bytes : 0);
  }
  if (steps_on_host) {
    const bool sums = inputs.zero >= 2 && !inputs.update_in_backward;
    bytes[gradients] = (sums ? sum_of(trained) : largest_share) * kFloat_bytes;
    ForecastInputs on_host = inputs;
    on_host.device_is_host = true;
    on_host.adamw_kernel = true;
    bytes[optimizer] = optimizer_bytes(on_host);
  }
  if (inputs.offload.activations == Offload::cpu)
    bytes[activations] = sum_of(leaving_bytes_of_layers(inputs));
  else if (inputs.offload.activations == Offload::disk)
    bytes[activations] = largest_run(leaving_bytes_of_layers(inputs), kAheadFromDiskToGpu_layers + 1);
  return bytes;
}

}  // namespace trireme
