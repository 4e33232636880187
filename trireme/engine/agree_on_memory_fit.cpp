#include "trireme/engine/agree_on_memory_fit.h"

#include <algorithm>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/comm/agreement.h"
#include "trireme/forecast/choose_resident_layers.h"
#include "trireme/forecast/memory_options.h"

namespace trireme {

std::optional<FitOfRanks> agree_on_memory_fit(Group& all, const std::optional<RankBudget>& budget,
                                              ForecastInputs& inputs, const EngineOptions& options) {
  if (!budget) return std::nullopt;
  ForecastInputs planned = with_batch(inputs, options.planned_batch.samples, options.planned_batch.tokens);
  const MemoryForecast forecast = choose_resident_layers(planned, budget->device_bytes, budget->host_bytes);
  inputs.resident_layers = planned.resident_layers;
  // Also the meeting point before which no rank allocates what others would then not find left.
  Agreement agreement(all, options.device);
  const std::vector<FitOfRanks> of_ranks = agreement.gather_one(
      FitOfRanks{{forecast.peak_total_bytes, budget->device_bytes, forecast.host.total(), budget->host_bytes},
                 planned.resident_layers});
  FitOfRanks fit = *std::ranges::max_element(of_ranks, {}, &MemoryFit::fullness);
  fit.most_resident_layers = std::ranges::max(of_ranks, {}, &FitOfRanks::resident_layers).resident_layers;
  return fit;
}

std::string shortage_warning(const FitOfRanks& fit, ForecastInputs inputs) {
  if (fit.fits()) return "";
  inputs.resident_layers = fit.resident_layers;
  std::vector<MemoryOption> options = memory_options(inputs);
  const bool on_host = !fit.fits_host();
  const MemorySpace space = on_host ? MemorySpace::host : MemorySpace::device;
  std::erase_if(options, [&](const MemoryOption& option) { return option.space != space; });
  const MemoryForecast forecast = memory_forecast(inputs);
  const std::string advice = memory_advice(on_host ? forecast.host : forecast.peak, options);
  return cat("warning: by the memory formulas a rank comes to ",
             format_bytes(on_host ? fit.expected_host_bytes : fit.expected_bytes), " where ",
             format_bytes(on_host ? fit.host_budget_bytes : fit.budget_bytes),
             on_host ? " of the host's memory" : "", " can be planned with",
             inputs.recompute.policy == Recompute::full ? ", even with --recompute full" : "",
             "; the run may end out of memory.",
             advice.empty() ? std::string() : cat(" What would help, the largest saving first: ", advice));
}

}  // namespace trireme
