// The fullest moments of the walk over one micro-batch, each with what it holds beside the stores: where
// activations, attention, tiles, exchanges and the rest have their peaks. Written after layer_runner.cpp,
// model_walk.cpp, attention/head_exchange.cpp, and tile_bytes.h; a change there that moves memory shows in
// tests/engine/memory_bytes_test.cpp.
#pragma once

#include <string>
#include <vector>

#include "trireme/engine/memory_bytes.h"

namespace trireme {

struct MemoryMoment {
  std::string name;  // "backward of layer 3: attention"
  MemoryBytes bytes;
};

std::vector<MemoryMoment> memory_moments(const MemoryShape& shape);

// What each layer's forward keeps for its backward.
std::vector<int64_t> kept_bytes_of_layers(const MemoryShape& shape);

}  // namespace trireme
