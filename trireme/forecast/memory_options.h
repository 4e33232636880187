// The options that would make a run smaller, with what each saves by the forecast.
#pragma once

#include "trireme/device/memory_advice.h"
#include "trireme/forecast/forecast_inputs.h"

namespace trireme {

// Those that this run does not use and that would save something. `inputs` have a batch.
std::vector<MemoryOption> memory_options(const ForecastInputs& inputs);

}  // namespace trireme
