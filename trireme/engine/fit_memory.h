// Whether a run is expected to fit in its ranks' memory, whatever was asked for.
#pragma once

#include <optional>
#include <string>

#include "trireme/comm/world.h"
#include "trireme/engine/engine_options.h"
#include "trireme/forecast/forecast_inputs.h"
#include "trireme/forecast/memory_fit.h"

namespace trireme {

// Training with a planned batch: the numbers of the rank that has the least room, the same on every rank. Otherwise
// none. Writes `inputs.resident_layers`, of which ranks need not have as many (forecast/choose_resident_layers.h).
// `inputs` are this rank's with the plan of recomputation, without a batch; `all` has every rank of the run.
// Collective; before a rank allocates what the formulas count.
std::optional<MemoryFit> fit_memory(const World& world, Group& all, ForecastInputs& inputs,
                                    const EngineOptions& options);

// Empty where it fits; otherwise what is expected and the options that would help, for a person. `inputs` are
// the engine's with the planned batch.
std::string shortage_warning(const MemoryFit& fit, const ForecastInputs& inputs);

}  // namespace trireme
