#include "trireme/forecast/choose_resident_layers.h"

#include <numeric>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/forecast/layer_buffers.h"

namespace trireme {
namespace {

// The fewest resident layers with which the host holds `lacking_bytes` less; all where that is not enough.
int64_t layers_for_the_host(const ForecastInputs& inputs, int64_t lacking_bytes) {
  int64_t layers = inputs.resident_layers;
  for (std::vector<int64_t> leaving = leaving_bytes_of_layers(inputs); !leaving.empty() && lacking_bytes > 0;
       leaving.pop_back(), ++layers)
    lacking_bytes -= leaving.back();
  return layers;
}

}  // namespace

MemoryForecast choose_resident_layers(ForecastInputs& inputs, int64_t device_budget_bytes,
                                      int64_t host_budget_bytes) {
  const auto forecast_of = [&](int64_t layers) {
    inputs.resident_layers = layers;
    return memory_forecast(inputs);
  };
  int64_t fitting = ResidentLayers{}.resident_layers;
  MemoryForecast forecast = forecast_of(fitting);
  const int64_t lacking_bytes = forecast.host.total() - host_budget_bytes;
  const bool to_host = inputs.offload.activations == Offload::cpu && !inputs.device_is_host;
  if (!to_host || lacking_bytes <= 0 || forecast.peak_total_bytes > device_budget_bytes) return forecast;
  // The peak does not fall as more stay; it may grow by less than what they keep.
  const int64_t wanted = layers_for_the_host(inputs, lacking_bytes);
  for (int64_t layers = wanted, too_many = wanted + 1; too_many - fitting > 1;
       layers = std::midpoint(fitting, too_many)) {
    if (const MemoryForecast more = forecast_of(layers); more.peak_total_bytes <= device_budget_bytes) {
      fitting = layers;
      forecast = more;
    } else {
      too_many = layers;
    }
  }
  inputs.resident_layers = fitting;
  return forecast;
}

std::string text_of_resident_layers(const ForecastInputs& inputs) {
  if (inputs.resident_layers == ResidentLayers{}.resident_layers) return "";
  return cat(" but those of the last ", inputs.resident_layers, " layers",
             inputs.recompute.checkpoint_every > 1 ? " that keep any" : "");
}

}  // namespace trireme
