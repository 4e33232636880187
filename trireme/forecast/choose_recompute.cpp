#include "trireme/forecast/choose_recompute.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/forecast/choose_resident_layers.h"
#include "trireme/forecast/recompute_cost.h"

namespace trireme {

std::string RecomputeChoice::description() const {
  std::string bytes = cat(format_bytes(expected_bytes), " of ", format_bytes(budget_bytes));
  if (expected_host_bytes > 0 && host_budget_bytes != kNoLimit)
    bytes +=
        cat(", and on the host ", format_bytes(expected_host_bytes), " of ", format_bytes(host_budget_bytes));
  return fits() ? cat("chosen: ", bytes) : cat("chosen, though the formulas expect ", bytes);
}

int64_t most_layers_of_group(int64_t layers) {
  return std::max<int64_t>(1, static_cast<int64_t>(std::sqrt(static_cast<double>(layers) / 2)));
}

std::vector<RecomputePlan> recompute_ladder(ForecastInputs inputs, std::optional<int64_t> checkpoint_every) {
  const int64_t layers = inputs.model.layers;
  struct Rung {
    double product_flops;
    RecomputePlan plan;
  };
  std::vector<Rung> rungs;
  int64_t& every = inputs.recompute.checkpoint_every;
  for (every = checkpoint_every.value_or(1); every <= checkpoint_every.value_or(most_layers_of_group(layers));
       ++every) {
    const KeepOrder order(inputs);
    for (int64_t position = 0; position <= order.last_position(); ++position) {
      const RecomputePlan plan = plan_keeping(order.at(position), every, layers);
      rungs.push_back({product_flops_made_again(plan, inputs), plan});
    }
  }
  std::ranges::stable_sort(rungs, std::greater(), &Rung::product_flops);
  std::vector<RecomputePlan> ladder;
  ladder.reserve(rungs.size());
  for (const Rung& rung : rungs) ladder.push_back(rung.plan);
  return ladder;
}

RecomputeChoice choose_recompute(ForecastInputs inputs, const std::vector<RecomputePlan>& ladder,
                                 int64_t budget_bytes, int64_t host_budget_bytes) {
  // Else what is kept takes nothing of the host's memory.
  const bool on_host = inputs.offload.activations != Offload::none;
  std::optional<RecomputeChoice> nearest;
  for (auto rung = std::ssize(ladder) - 1; rung >= 0; --rung) {
    RecomputeChoice choice{{.budget_bytes = budget_bytes}, rung, ladder[static_cast<size_t>(rung)]};
    if (on_host) choice.host_budget_bytes = host_budget_bytes;
    inputs.recompute = choice.plan;
    const MemoryForecast forecast =
        choose_resident_layers(inputs, choice.budget_bytes, choice.host_budget_bytes);
    choice.expected_bytes = forecast.peak_total_bytes;
    choice.expected_host_bytes = forecast.host.total();
    if (choice.fits()) return choice;
    if (!nearest || choice.bytes_over() <= nearest->bytes_over()) nearest = choice;
  }
  TRIREME_ASSERT(nearest, "a ladder without rungs");
  return *nearest;
}

}  // namespace trireme
