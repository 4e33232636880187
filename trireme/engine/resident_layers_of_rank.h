// How many layers' activations stay on this rank's device where they are offloaded to the host.
#pragma once

#include "trireme/comm/world.h"
#include "trireme/engine/engine_options.h"
#include "trireme/forecast/forecast_inputs.h"

namespace trireme {

// By what this rank's device and host have left (forecast/choose_resident_layers.h), where activations go to the host
// beside a GPU and the largest micro-batch is planned; else `inputs`' own. Ranks need not have the same number.
// `inputs` are this rank's with the plan of recomputation, without a batch; `all` has every rank of the run.
// Collective; before a rank allocates what the formulas count.
int64_t resident_layers_of_rank(const World& world, Group& all, const ForecastInputs& inputs,
                                const EngineOptions& options);

}  // namespace trireme
