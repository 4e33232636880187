#include "trireme/memory/make_activation_store.h"

#include <utility>

#include "trireme/base/error.h"

namespace trireme {
namespace {

class DeviceActivations final : public ActivationStore {
 public:
  explicit DeviceActivations(int64_t layers) : held_(static_cast<size_t>(layers)) {}
  void put(int64_t layer, Saved saved) override {
    Saved& slot = held_.at(static_cast<size_t>(layer));
    TRIREME_ASSERT(slot.empty(), "layer ", layer, " was put twice");
    slot = std::move(saved);
  }
  Saved take(int64_t layer) override {
    Saved& slot = held_.at(static_cast<size_t>(layer));
    TRIREME_ASSERT(!slot.empty(), "layer ", layer, " has nothing to take");
    return std::exchange(slot, {});
  }

 private:
  std::vector<Saved> held_;
};

}  // namespace

std::unique_ptr<ActivationStore> make_activation_store(int64_t layers, at::Device device, Offload offload,
                                                       SpillFile* spill, int64_t resident_layers) {
  const bool on_host = device.is_cpu();
  if (offload == Offload::none || (offload == Offload::cpu && on_host))
    return std::make_unique<DeviceActivations>(layers);
  std::shared_ptr<PinnedPool> pinned;
  if (!on_host) pinned = std::make_shared<PinnedPool>(make_host_pinning(device));
  std::unique_ptr<SpanStorage> elsewhere;
  if (offload == Offload::disk) {
    TRIREME_ASSERT(spill != nullptr, "offload to disk without a file");
    elsewhere = make_disk_spans(layers, *spill, pinned);
  }
  ResidentLayers resident{.resident_layers = resident_layers};
  if (!on_host) {
    if (elsewhere) resident.ahead_layers = kAheadFromDiskToGpu_layers;
    elsewhere = make_host_spans(layers, device, pinned, make_copy_stream(device), std::move(elsewhere));
  }
  return make_offloaded_activations(layers, std::move(elsewhere), resident);
}

}  // namespace trireme
