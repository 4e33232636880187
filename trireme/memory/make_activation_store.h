// The one place that chooses where activations lie between forward and backward.
#pragma once

#include <cstdint>
#include <memory>

#include <ATen/ATen.h>

#include "trireme/memory/activation_store.h"
#include "trireme/memory/offload.h"
#include "trireme/memory/spill_file.h"

namespace trireme {

// For the saved tensors of `layers` layers on `device`. `spill` is used for Offload::disk alone and outlives
// the store. Offload::cpu on a CPU is where they lie anyway.
std::unique_ptr<ActivationStore> make_activation_store(int64_t layers, at::Device device, Offload place,
                                                       SpillFile* spill);

}  // namespace trireme
