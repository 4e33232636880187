// Forward and backward of one micro-batch as a list of snapshots, one wherever a category can be fullest,
// each with what is held then beside the stores: activations, attention, tiles, exchanges and the rest.
// Written after engine/layer_runner.cpp, engine/model_executor.cpp, attention/head_exchange.cpp, and
// tile_bytes.h; a change there that moves memory shows in tests/engine/memory_bytes_test.cpp.
#pragma once

#include <string>
#include <vector>

#include "trireme/device/memory_category.h"
#include "trireme/forecast/forecast_inputs.h"
#include "trireme/forecast/store_bytes.h"

namespace trireme {

struct MemorySnapshot {
  const char* pass = "";   // "backward", of `layer` or of none
  const char* phase = "";  // "attention"
  int64_t layer = -1;
  MemoryBytes bytes;
  UnitsInMemory units;  // beside them, where stores are sharded

  std::string name() const;  // "backward of layer 3: attention"
};

// Of layers that are alike or alternate, and of groups of them, forward is fullest in the last ones and backward
// in the first and the last: the others hold less of the same. They are left out where `every_layer` is false,
// which moves no peak.
std::vector<MemorySnapshot> memory_timeline(const ForecastInputs& inputs, bool every_layer = true);

}  // namespace trireme
