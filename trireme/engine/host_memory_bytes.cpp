#include "trireme/engine/host_memory_bytes.h"

#include <algorithm>
#include <numeric>

#include "trireme/engine/memory_moments.h"

namespace trireme {
namespace {

constexpr size_t kStayingLayers = 2;  // memory/offloaded_activations.h

int64_t parameters_on_host(const MemoryShape& shape, const std::vector<int64_t>& shares) {
  // Stepped masters are narrowed in pinned memory, on their way to values on the device.
  const bool narrowed = !on_device(shape, shape.offload.optimizer) && shape.tile_bytes != kFloat_bytes;
  if (shape.zero < 3 || on_device(shape, shape.offload.parameters))
    return narrowed ? largest_run(shares, 1) * shape.tile_bytes : 0;
  if (shape.offload.parameters == Offload::cpu)
    return std::accumulate(shares.begin(), shares.end(), int64_t{0}) * shape.tile_bytes;
  return (largest_run(shares, 4) + (updates_are_deferred(shape) ? largest_run(shares, 2) : 0)) *
         shape.tile_bytes;
}

int64_t gradients_on_host(const MemoryShape& shape, const std::vector<int64_t>& shares) {
  if (on_device(shape, shape.offload.optimizer)) return 0;
  const bool sums = shape.zero >= 2 && !shape.update_in_backward;
  return (sums ? std::accumulate(shares.begin(), shares.end(), int64_t{0}) : largest_run(shares, 1)) *
         kFloat_bytes;
}

int64_t optimizer_on_host(MemoryShape shape) {
  if (on_device(shape, shape.offload.optimizer)) return 0;
  shape.device_is_host = true;
  shape.narrow_kernel = false;
  return optimizer_bytes(shape);
}

int64_t activations_on_host(const MemoryShape& shape) {
  if (on_device(shape, shape.offload.activations)) return 0;
  std::vector<int64_t> kept = kept_bytes_of_layers(shape);
  if (shape.offload.activations == Offload::disk) return largest_run(kept, 2);
  kept.resize(kept.size() - std::min(kept.size(), kStayingLayers));
  return std::accumulate(kept.begin(), kept.end(), int64_t{0});
}

}  // namespace

MemoryBytes host_memory_bytes(const MemoryShape& shape) {
  const std::vector<int64_t> shares = own_shares(shape);
  MemoryBytes bytes;
  bytes[MemoryCategory::parameters] = parameters_on_host(shape, shares);
  bytes[MemoryCategory::gradients] = gradients_on_host(shape, shares);
  bytes[MemoryCategory::optimizer] = optimizer_on_host(shape);
  bytes[MemoryCategory::activations] = activations_on_host(shape);
  return bytes;
}

}  // namespace trireme
