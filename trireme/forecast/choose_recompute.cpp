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

GroupSizes sizes_of_groups(std::optional<int64_t> checkpoint_every, int64_t layers, Offload activations) {
  if (checkpoint_every) {
    const int64_t asked = std::min(*checkpoint_every, layers);
    return {asked, asked};
  }
  const auto root = static_cast<int64_t>(std::sqrt(static_cast<double>(layers) / 2));
  return {1, std::max<int64_t>(1, activations == Offload::none ? root : std::min<int64_t>(8, layers / 4))};
}

std::vector<RecomputePlan> recompute_ladder(ForecastInputs inputs, std::optional<int64_t> checkpoint_every) {
  const int64_t layers = inputs.model.layers;
  struct Rung {
    double product_flops;
    RecomputePlan plan;
  };
  std::vector<Rung> rungs;
  const GroupSizes sizes = sizes_of_groups(checkpoint_every, layers, inputs.offload.activations);
  int64_t& every = inputs.recompute.checkpoint_every;
  for (every = sizes.fewest; every <= sizes.most; ++every) {
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

RecomputeChoice choice_of_rung(const ForecastInputs& inputs, const std::vector<RecomputePlan>& ladder,
                               int64_t rung, int64_t budget_bytes, int64_t host_budget_bytes) {
  RecomputeChoice choice{{.budget_bytes = budget_bytes}, rung, ladder[static_cast<size_t>(rung)]};
  // Else what is kept takes nothing of the host's memory.
  if (inputs.offload.activations != Offload::none) choice.host_budget_bytes = host_budget_bytes;
  ForecastInputs planned = inputs;
  planned.recompute = choice.plan;
  const MemoryForecast forecast =
      choose_resident_layers(planned, choice.budget_bytes, choice.host_budget_bytes);
  choice.expected_bytes = forecast.peak_total_bytes;
  choice.expected_host_bytes = forecast.host.total();
  return choice;
}

std::vector<int64_t> bytes_over_of_rungs(const ForecastInputs& inputs,
                                         const std::vector<RecomputePlan>& ladder, int64_t budget_bytes,
                                         int64_t host_budget_bytes) {
  std::vector<int64_t> bytes_over;
  bytes_over.reserve(ladder.size());
  for (int64_t rung = 0; rung < std::ssize(ladder); ++rung)
    bytes_over.push_back(choice_of_rung(inputs, ladder, rung, budget_bytes, host_budget_bytes).bytes_over());
  return bytes_over;
}

int64_t rung_that_fits(const std::vector<int64_t>& bytes_over_of_rungs) {
  TRIREME_ASSERT(!bytes_over_of_rungs.empty(), "a ladder without rungs");
  for (auto rung = std::ssize(bytes_over_of_rungs) - 1; rung >= 0; --rung)
    if (bytes_over_of_rungs[static_cast<size_t>(rung)] == 0) return rung;
  return std::ranges::min_element(bytes_over_of_rungs) - bytes_over_of_rungs.begin();
}

RecomputeChoice choose_recompute(const ForecastInputs& inputs, const std::vector<RecomputePlan>& ladder,
                                 int64_t budget_bytes, int64_t host_budget_bytes) {
  const int64_t rung = rung_that_fits(bytes_over_of_rungs(inputs, ladder, budget_bytes, host_budget_bytes));
  return choice_of_rung(inputs, ladder, rung, budget_bytes, host_budget_bytes);
}

}  // namespace trireme
