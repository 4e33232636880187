#include "trireme/plan/planned.h"

#include <algorithm>

#include "trireme/device/planned_bytes.h"
#include "trireme/forecast/choose_resident_layers.h"
#include "trireme/forecast/memory_fit.h"
#include "trireme/plan/planned_inputs.h"

namespace trireme {

MemoryLimits memory_limits(const PlanRequest& request, int ranks) {
  const auto share = [&](int64_t bytes) {
    return static_cast<int64_t>(request.memory_share * static_cast<double>(bytes));
  };
  const HardwareProfile& hardware = request.hardware;
  MemoryLimits limits{share(hardware.memory_bytes), 0};
  if (hardware.is_gpu && hardware.host_memory_bytes > 0) {
    const int64_t devices = hardware.machine_devices(ranks);
    const int64_t of_engine =
        devices * planned_bytes(hardware.host_memory_bytes, devices, kOutsideOnHost_bytes);
    limits.host_bytes = std::max<int64_t>(1, std::min(share(hardware.host_memory_bytes), of_engine));
  }
  return limits;
}

int64_t bytes_for_tensors(const PlanRequest& request, int64_t device_bytes) {
  const HardwareProfile& hardware = request.hardware;
  const double share = request.memory_share * static_cast<double>(device_bytes);
  return static_cast<int64_t>((share - static_cast<double>(hardware.outside_tensors_bytes)) /
                              (1 + hardware.fragments_share));
}

PlannedMemory planned_memory(const PlanRequest& request, ForecastInputs& inputs) {
  const HardwareProfile& hardware = request.hardware;
  const int devices = hardware.machine_devices(inputs.ranks);
  PlannedMemory use;
  use.limits = memory_limits(request, inputs.ranks);
  use.forecast = choose_resident_layers(
      inputs, bytes_for_tensors(request, hardware.memory_bytes),
      use.limits.host_bytes == 0 ? MemoryFit::kNoLimit : use.limits.host_bytes / devices);
  const auto tensors = static_cast<double>(use.forecast.peak_total_bytes);
  use.device_bytes =
      static_cast<int64_t>(tensors * (1 + hardware.fragments_share)) + hardware.outside_tensors_bytes;
  use.host_bytes = use.forecast.host.total() * devices;
  return use;
}

Planned make_planned(const PlanRequest& request, const Configuration& configuration, int64_t tokens) {
  Planned planned;
  planned.configuration = configuration;
  planned.step = planned_step(request, configuration, tokens);
  // Of a step that sends all but two layers' activations away, as the search compares them: less is sent
  // where more stay.
  planned.time = step_time(planned.step, request.hardware);
  planned.memory = planned_memory(request, planned.step.inputs);
  return planned;
}

}  // namespace trireme
