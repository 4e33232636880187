// How many layers' saved tensors offloaded_activations.cpp keeps in memory. The memory forecast counts by it.
// No torch here.
#pragma once

#include <cstdint>

namespace trireme {

struct ResidentLayers {
  int64_t resident_layers = 2;  // put last: backward begins with them
  int64_t leaving_layers = 1;   // on their way out beside them
  int64_t ahead_layers = 1;     // on their way back beside the one taken
};

// From a disk to a GPU: one on its way to the host, one from there on. With the one taken they lie on the host.
inline constexpr int64_t kAheadFromDiskToGpu_layers = 2;

}  // namespace trireme
