// Chooses where activations lie between forward and backward. No other code does.
#pragma once

#include <cstdint>
#include <memory>

#include <ATen/ATen.h>

#include "trireme/memory/activation_store.h"
#include "trireme/memory/offload.h"
#include "trireme/memory/resident_layers.h"
#include "trireme/memory/span_storage.h"
#include "trireme/memory/spill_file.h"

namespace trireme {

// A store for the saved tensors of `layers` layers on `device`, the last `resident_layers` of which stay
// there. Only Offload::disk uses `spill`, which outlives the store. On a CPU, Offload::cpu changes nothing.
std::unique_ptr<ActivationStore> make_activation_store(
    int64_t layers, at::Device device, Offload offload, SpillFile* spill,
    int64_t resident_layers = ResidentLayers{}.resident_layers);

// Its part that keeps a few layers in memory and the others elsewhere.
std::unique_ptr<ActivationStore> make_offloaded_activations(int64_t layers,
                                                            std::unique_ptr<SpanStorage> elsewhere,
                                                            const ResidentLayers& resident = {});

}  // namespace trireme
