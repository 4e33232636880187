// How many layers' activations stay on the device with --offload_activations cpu: the last two
// (memory/resident_layers.h), and as many more of the last ones as the host has no room for and the device
// has. So a small host shortens a sample only by what host and device lack together.
//
//   layers that keep something    the first ... on the host | the last R on the device
#pragma once

#include <cstdint>
#include <string>

#include "trireme/forecast/memory_forecast.h"

namespace trireme {

// Writes `inputs.resident_layers`: the fewest with which the forecast is within both budgets; if none is,
// as many as the device's budget allows, so that the host lacks least. Returns the forecast with them.
MemoryForecast choose_resident_layers(ForecastInputs& inputs, int64_t device_budget_bytes,
                                      int64_t host_budget_bytes);

// " but those of the last 6 layers", after where activations go; empty where only two stay, as always.
std::string text_of_resident_layers(const ForecastInputs& inputs);

}  // namespace trireme
