#include "trireme/forecast/choose_resident_layers.h"

#include <limits>
#include <vector>

#include "trireme/base/error.h"

namespace trireme {
namespace {

// `inputs` with as many more resident layers as the host's `lacking_bytes` take, of which the device has
// `room_bytes` for. A layer that stays adds to the device's peak no more than it keeps.
ForecastInputs with_more_resident(ForecastInputs inputs, int64_t lacking_bytes, int64_t room_bytes) {
  for (std::vector<int64_t> leaving = leaving_bytes_of_layers(inputs);
       !leaving.empty() && lacking_bytes > 0 && leaving.back() <= room_bytes; leaving.pop_back()) {
    lacking_bytes -= leaving.back();
    room_bytes -= leaving.back();
    ++inputs.resident_layers;
  }
  return inputs;
}

}  // namespace

MemoryForecast choose_resident_layers(ForecastInputs& inputs, int64_t device_budget_bytes,
                                      int64_t host_budget_bytes) {
  inputs.resident_layers = ResidentLayers{}.resident_layers;
  const MemoryForecast least = memory_forecast(inputs);
  const int64_t lacking_bytes = least.host.total() - host_budget_bytes;
  const int64_t room_bytes = device_budget_bytes - least.peak_total_bytes;
  const bool to_host = inputs.offload.activations == Offload::cpu && !inputs.device_is_host;
  if (!to_host || lacking_bytes <= 0 || room_bytes < 0) return least;
  // The peak may grow by less than what stays.
  ForecastInputs more = with_more_resident(inputs, lacking_bytes, std::numeric_limits<int64_t>::max());
  MemoryForecast forecast = memory_forecast(more);
  if (forecast.peak_total_bytes > device_budget_bytes) {
    more = with_more_resident(inputs, lacking_bytes, room_bytes);
    forecast = memory_forecast(more);
  }
  inputs = std::move(more);
  return forecast;
}

std::string text_of_resident_layers(const ForecastInputs& inputs) {
  if (inputs.resident_layers == ResidentLayers{}.resident_layers) return "";
  return cat(" but those of the last ", inputs.resident_layers, " layers",
             inputs.recompute.checkpoint_every > 1 ? " that keep any" : "");
}

}  // namespace trireme
