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

int64_t sum_of_categories(const std::vector<CategoryBytes>& categories) {
  int64_t sum = 0;
  for (const CategoryBytes& each : categories) sum += each.bytes;
  return sum;
}

}  // namespace

int64_t MemoryShortage::device_bytes() const {
  return sum_of_categories(device);
}
int64_t MemoryShortage::host_bytes() const {
  return sum_of_categories(host);
}

MemoryShortage memory_shortage(const PlannedStep& step, const TensorLimits& limits) {
  const MemoryForecast forecast = memory_forecast(step.inputs);
  return {limits, forecast.fullest.name(), largest_first(forecast.fullest.bytes, 1),
          largest_first(forecast.host, limits.machine_ranks)};
}

MemoryAnswer explain_memory(const PlannedStep& step, const HardwareProfile& hardware,
                            const TensorLimits& limits, const std::optional<MemoryError>& error,
                            const ChangesAllowed& allowed) {
  MemoryAnswer answer{error, {}, {}, find_memory_changes(step, hardware, limits, allowed)};
  answer.shortage = memory_shortage(answer.changes.step, answer.changes.limits);
  if (error)
    answer.causes = memory_error_causes(*error, {step.inputs, limits.device_bytes, hardware.memory_bytes});
  return answer;
}

}  // namespace trireme
