#include "trireme/forecast/choose_recompute.h"

#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/forecast/choose_resident_layers.h"

namespace trireme {

std::string RecomputeChoice::description() const {
  std::string bytes = cat(format_bytes(expected_bytes), " of ", format_bytes(budget_bytes));
  if (expected_host_bytes > 0 && host_budget_bytes != kNoLimit)
    bytes +=
        cat(", and on the host ", format_bytes(expected_host_bytes), " of ", format_bytes(host_budget_bytes));
  return fits() ? cat("chosen: ", bytes) : cat("chosen, though the formulas expect ", bytes);
}

RecomputeChoice choose_recompute(const ForecastInputs& inputs, int64_t budget_bytes,
                                 int64_t host_budget_bytes) {
  return choose_recompute(inputs, KeepOrder(inputs), budget_bytes, host_budget_bytes);
}

RecomputeChoice choose_recompute(ForecastInputs inputs, const KeepOrder& order, int64_t budget_bytes,
                                 int64_t host_budget_bytes) {
  RecomputeChoice choice;
  choice.budget_bytes = budget_bytes;
  // Else what is kept takes nothing of the host's memory.
  if (inputs.offload.activations != Offload::none) choice.host_budget_bytes = host_budget_bytes;
  const int64_t every = inputs.recompute.checkpoint_every;
  // One by one from the most: with groups of layers (checkpoint_every) more layers that keep attention may
  // need less, because a layer that runs again then keeps less, so that halving the range could miss the
  // answer.
  for (choice.position = order.last_position();; --choice.position) {
    choice.plan = inputs.recompute = plan_keeping(order.at(choice.position), every, inputs.model.layers);
    const MemoryForecast forecast =
        choose_resident_layers(inputs, choice.budget_bytes, choice.host_budget_bytes);
    choice.expected_bytes = forecast.peak_total_bytes;
    choice.expected_host_bytes = forecast.host.total();
    if (choice.fits() || choice.position == 0) return choice;
  }
}

}  // namespace trireme
