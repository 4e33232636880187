// What a training step takes of the host's memory beside a GPU: what is offloaded, and what passes through on its way
// to a disk. Sums of buffers as in memory_bytes.h, whose letters these are.
//
//   parameters   offloaded to the host: this rank's shares; to disk: those of four units, read ahead or on their way
//                back, and of two more for the walk where updates are deferred
//   gradients    where the optimizer is offloaded: the sums that it steps with ZeRO 2 and 3, else one unit's
//   optimizer    as on a CPU
//   activations  offloaded to the host: what all layers keep but the last two, which stay; to disk: of two layers
#pragma once

#include "trireme/engine/memory_bytes.h"

namespace trireme {

// All zero on a CPU, whose memory is the device's. Tokens and what is read while a run begins are not in it.
MemoryBytes host_memory_bytes(const MemoryShape& shape);

}  // namespace trireme
