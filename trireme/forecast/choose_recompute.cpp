#include "trireme/forecast/choose_recompute.h"

#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/forecast/memory_forecast.h"

namespace trireme {

double RecomputeChoice::keep_fraction() const {
  return keeping_layers > 0 ? static_cast<double>(keeping_layers) / static_cast<double>(layers) : 1;
}

std::string RecomputeChoice::description() const {
  const std::string bytes = cat(format_bytes(expected_bytes), " of ", format_bytes(budget_bytes));
  return fits() ? cat("chosen: ", bytes) : cat("chosen, though the formulas expect ", bytes);
}

RecomputeChoice choose_recompute(ForecastInputs inputs, int64_t budget_bytes) {
  RecomputeChoice choice;
  choice.layers = inputs.model.layers;
  choice.budget_bytes = budget_bytes;
  // One by one from the most: with groups of layers (checkpoint_every) more layers that keep attention may
  // need less, because a layer that runs again then keeps less, so that halving the range could miss the
  // answer.
  for (choice.keeping_layers = choice.layers;; --choice.keeping_layers) {
    inputs.recompute = {choice.policy(), inputs.recompute.checkpoint_every, choice.keep_fraction(),
                        choice.layers};
    choice.expected_bytes = memory_forecast(inputs).peak_total_bytes;
    if (choice.fits() || choice.keeping_layers == 0) return choice;
  }
}

}  // namespace trireme
