// A configuration with what it takes: memory of each device and of a machine's host, and seconds of a step.
#pragma once

#include "trireme/forecast/memory_forecast.h"
#include "trireme/plan/plan_request.h"
#include "trireme/plan/step_time.h"

namespace trireme {

// What may be filled of a device, and of a machine's host.
struct MemoryLimits {
  int64_t device_bytes = 0;
  int64_t host_bytes = 0;  // 0: none, of a CPU or where the profile does not know
};
// What a plan may fill: the share that is asked, and of a host no more than the engine plans with.
MemoryLimits memory_limits(const PlanRequest& request, int ranks);

// Of the fullest rank.
struct PlannedMemory {
  MemoryForecast forecast;   // of tensors
  int64_t device_bytes = 0;  // of its device: tensors, fragments, and what lies beside tensors
  int64_t host_bytes = 0;    // of a machine's host: that of the devices that it serves
  MemoryLimits limits;

  bool fits() const { return device_over_bytes() <= 0 && host_over_bytes() <= 0; }
  // Context, libraries, fragments.
  int64_t beside_tensors_bytes() const { return device_bytes - forecast.peak_total_bytes; }
  int64_t device_over_bytes() const { return device_bytes - limits.device_bytes; }
  int64_t host_over_bytes() const { return limits.host_bytes == 0 ? 0 : host_bytes - limits.host_bytes; }
};
// That a rank's tensors may take of a device of so many bytes, which the plan fills to its share: the inverse
// of PlannedMemory::device_bytes.
int64_t bytes_for_tensors(const PlanRequest& request, int64_t device_bytes);
// Writes `inputs.resident_layers` (forecast/choose_resident_layers.h).
PlannedMemory planned_memory(const PlanRequest& request, ForecastInputs& inputs);

struct Planned {
  Configuration configuration;
  PlannedStep step;
  PlannedMemory memory;
  StepTime time;

  int64_t tokens() const { return step.inputs.tokens; }
  double seconds_per_token() const { return time.seconds / step.tokens(); }
  double device_tokens_per_second() const { return time.tokens_per_second / configuration.ranks(); }
};
// Throws ConfigError as step_time does.
Planned make_planned(const PlanRequest& request, const Configuration& configuration, int64_t tokens);

}  // namespace trireme
