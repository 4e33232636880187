#include "trireme/memory/make_activation_store.h"

#include "trireme/base/error.h"
#include "trireme/memory/disk_spans.h"
#include "trireme/memory/host_spans.h"
#include "trireme/memory/offloaded_activations.h"

namespace trireme {

std::unique_ptr<ActivationStore> make_activation_store(int64_t layers, at::Device device, Offload offload,
                                                       SpillFile* spill) {
  const bool on_host = device.is_cpu();
  if (offload == Offload::none || (offload == Offload::cpu && on_host))
    return std::make_unique<DeviceActivationStore>(layers);
  std::shared_ptr<PinnedPool> pinned;
  if (!on_host) pinned = std::make_shared<PinnedPool>(make_host_pinning(device));
  std::unique_ptr<SpanStorage> elsewhere;
  if (offload == Offload::disk) {
    TRIREME_ASSERT(spill != nullptr, "offload to disk without a file");
    elsewhere = std::make_unique<DiskSpans>(layers, *spill, pinned);
  }
  ResidentLayers resident;
  if (!on_host) {
    // Layers come from disk through the host's memory.
    if (elsewhere) resident.ahead_layers = 2;
    elsewhere =
        std::make_unique<HostSpans>(layers, device, pinned, make_copy_stream(device), std::move(elsewhere));
  }
  return std::make_unique<OffloadedActivations>(layers, std::move(elsewhere), resident);
}

}  // namespace trireme
