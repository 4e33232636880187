// How many layers' activations stay on the device with --offload_activations cpu: the last two, as
// memory/resident_layers.h says, and as many more as the host's memory has no room for, where the device has.
// So a small host shortens a sample by what both memories lack together.
//
//   layer        0 .. L - r - 1     L - r .. L - 1
//   kept         on the host        on the device
#pragma once

#include <cstdint>
#include <string>

#include "trireme/forecast/memory_forecast.h"

namespace trireme {

// Writes `inputs.resident_layers`, the least with which the forecast is within both budgets; without such a
// number the least that there is, so that what is told about a shortage names the memory that is short. Returns
// the forecast of it.
MemoryForecast forecast_within(ForecastInputs& inputs, int64_t device_budget_bytes,
                               int64_t host_budget_bytes);

// " but those of the last 6 layers", after where activations go; empty where only two stay, as always.
std::string text_of_resident_layers(const ForecastInputs& inputs);

}  // namespace trireme
