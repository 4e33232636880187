// From a model and options to what the memory forecast depends on.
#pragma once

#include "trireme/comm/mesh.h"
#include "trireme/engine/engine_options.h"
#include "trireme/forecast/forecast_inputs.h"
#include "trireme/model/model_layout.h"

namespace trireme {

// What assemble chose beside the options.
struct ChosenSizes {
  at::ScalarType storage = at::kFloat;
  at::ScalarType tile = at::kFloat;
  int64_t tile_tokens = 0;
  int64_t logits_tile_tokens = 0;
};

ModelSizes model_sizes(const ModelConfig& config, const ModelLayout& layout);

// For this rank, without a batch and a recompute plan yet: see with_batch, and agree_on_recompute.h.
ForecastInputs make_forecast_inputs(const ModelConfig& config, const ModelLayout& layout,
                                    const EngineOptions& options, const Mesh& mesh,
                                    const ChosenSizes& chosen);

}  // namespace trireme
