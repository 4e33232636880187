// Which engine options can stand together. A combination that means nothing, or that cannot be done, is a
// ConfigError that says what to give instead.
#pragma once

#include "trireme/engine/engine_options.h"
#include "trireme/model/model_config.h"

namespace trireme {

void check_engine_options(const EngineOptions& options);
// The same for what depends on the model: more Ulysses ranks than query heads, more head chunks than heads
// of a rank, windows for a kernel that has none.
void check_heads(const EngineOptions& options, const ModelConfig& config);
// The same for what depends on the dtype of the values that compute reads, which assemble chooses.
void check_stored_states(const EngineOptions& options, at::ScalarType compute_dtype);

}  // namespace trireme
