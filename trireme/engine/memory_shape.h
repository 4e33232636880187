// From a model and options to the byte formulas' arguments, and to the options that would make a run smaller.
#pragma once

#include <vector>

#include "trireme/attention/head_shares.h"
#include "trireme/comm/mesh.h"
#include "trireme/device/memory_advice.h"
#include "trireme/engine/engine_options.h"
#include "trireme/engine/memory_bytes.h"
#include "trireme/model/model_config.h"

namespace trireme {

// What assemble chose beside the options.
struct ChosenSizes {
  at::ScalarType storage = at::kFloat;
  at::ScalarType tile = at::kFloat;
  int64_t tile_tokens = 0;
  int64_t logits_tile_tokens = 0;
};

ModelExtents model_extents(const ModelConfig& config);

// For this rank, without a batch and a recompute plan yet: see with_batch, and settle_recompute.h.
MemoryShape memory_shape(const ModelConfig& config, const EngineOptions& options, const Mesh& mesh,
                         const ChosenSizes& chosen);
// The same with micro-batches of `batch` samples of `tokens` tokens.
MemoryShape with_batch(MemoryShape shape, int64_t batch, int64_t tokens);

// The options that this run does not use and that would save something, with their shares by the formulas.
// `shape` has a batch.
std::vector<MemoryOption> memory_options(const MemoryShape& shape);

}  // namespace trireme
