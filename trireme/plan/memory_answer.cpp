#include "trireme/plan/memory_answer.h"

#include <algorithm>

#include "trireme/forecast/memory_forecast.h"

namespace trireme {
namespace {

std::vector<CategoryBytes> largest_first(const MemoryBytes& bytes, int64_t times) {
  std::vector<CategoryBytes> all;
  for (const MemoryCategory category : kAllMemoryCategories)
    if (bytes[category] > 0) all.push_back({category, bytes[category] * times});
  std::ranges::stable_sort(all, std::ranges::greater(), &CategoryBytes::bytes);
  return all;
}

}  // namespace

MemoryShortage memory_shortage(const PlannedStep& step, int64_t machine_ranks) {
  const MemoryForecast forecast = memory_forecast(step.inputs);
  return {forecast.fullest.name(), largest_first(forecast.fullest.bytes, 1),
          largest_first(forecast.host, machine_ranks)};
}

MemoryAnswer explain_memory(const PlannedStep& step, const HardwareProfile& hardware,
                            const TensorLimits& limits, const std::optional<MemoryError>& error,
                            const ChangesAllowed& allowed) {
  MemoryAnswer answer{error, {}, {}, find_memory_changes(step, hardware, limits, allowed)};
  answer.shortage = memory_shortage(answer.changes.step, limits.machine_ranks);
  if (error)
    answer.causes = memory_error_causes(*error, {step.inputs, limits.device_bytes, hardware.memory_bytes});
  return answer;
}

}  // namespace trireme
