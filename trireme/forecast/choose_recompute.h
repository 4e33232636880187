// What --recompute auto means on one rank: keep attention's output on as many of the last layers as the
// memory formulas fit into a budget.
//
//   all L layers  -> keep_attention        k of them  -> keep_attention on the last k        none  -> full
//
// Never `none`: it keeps 2M + 3 H D + 2 K D + 2 I values a token and layer where keep_attention keeps M + H
// D, and saves token-wise products alone, whose share of a step shrinks as sequences grow; memory that is
// left serves a longer sequence or a larger batch better.
#pragma once

#include <cstdint>
#include <string>

#include "trireme/forecast/forecast_inputs.h"

namespace trireme {

struct RecomputeChoice {
  int64_t keeping_layers = 0;  // that keep attention; the last ones
  int64_t layers = 0;
  int64_t expected_bytes = 0;  // memory_forecast's total with this choice
  int64_t budget_bytes = 0;

  bool fits() const { return expected_bytes <= budget_bytes; }
  Recompute policy() const { return keeping_layers > 0 ? Recompute::keep_attention : Recompute::full; }
  // A plan's round(fraction x layers) is keeping_layers.
  double keep_fraction() const;
  // "chosen: 61.2 GiB of 64.0 GiB", or that the formulas expect more than there is.
  std::string description() const;
};

// The most layers that may keep attention so that their forecast is within the budget; 0 where not even that
// fits. `inputs` have a batch; of their recompute plan checkpoint_every alone is read.
RecomputeChoice choose_recompute(ForecastInputs inputs, int64_t budget_bytes);

}  // namespace trireme
