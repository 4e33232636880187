#include "trireme/forecast/resident_layers.h"

#include <utility>
#include <vector>

#include "trireme/base/error.h"

namespace trireme {

MemoryForecast forecast_within(ForecastInputs& inputs, int64_t device_budget_bytes,
                               int64_t host_budget_bytes) {
  inputs.resident_layers = ResidentLayers{}.resident_layers;
  MemoryForecast least = memory_forecast(inputs);
  int64_t over = least.host.total() - host_budget_bytes;
  const bool to_host = inputs.offload.activations == Offload::cpu && !inputs.device_is_host;
  if (!to_host || over <= 0 || least.peak_total_bytes > device_budget_bytes) return least;
  ForecastInputs more = inputs;
  for (std::vector<int64_t> leaving = leaving_bytes_of_layers(inputs); over > 0 && !leaving.empty();
       leaving.pop_back()) {
    over -= leaving.back();
    ++more.resident_layers;
  }
  if (over > 0) return least;
  MemoryForecast fitting = memory_forecast(more);
  if (fitting.peak_total_bytes > device_budget_bytes) return least;
  inputs = std::move(more);
  return fitting;
}

std::string text_of_resident_layers(const ForecastInputs& inputs) {
  if (inputs.resident_layers == ResidentLayers{}.resident_layers) return "";
  return cat(" but those of the last ", inputs.resident_layers, " layers");
}

}  // namespace trireme
