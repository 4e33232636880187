// What --recompute auto means on one rank: keep what costs most time a byte to make again, on as many of the
// last layers as the memory formulas fit into a budget.
//
//   position of keep_order.h    0 -> full    L (attention first) -> keep_attention    3 L -> none
//
// So a step computes nothing twice where there is memory for that.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "trireme/forecast/keep_order.h"

namespace trireme {

struct RecomputeChoice {
  int64_t position = 0;  // of the keep order
  RecomputePlan plan;
  int64_t expected_bytes = 0;  // memory_forecast's total with this choice
  int64_t budget_bytes = 0;
  // The same of the host's memory beside a GPU, which offloaded activations fill.
  int64_t expected_host_bytes = 0;
  int64_t host_budget_bytes = kNoLimit;

  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
  bool fits_host() const { return expected_host_bytes <= host_budget_bytes; }
  bool fits() const { return expected_bytes <= budget_bytes && fits_host(); }
  // "chosen: 61.2 GiB of 64.0 GiB", or that the formulas expect more than there is.
  std::string description() const;
};

// The furthest position whose forecast is within both budgets; 0 where not even that fits. `inputs` have a
// batch; of their recompute plan checkpoint_every alone is read.
RecomputeChoice choose_recompute(const ForecastInputs& inputs, int64_t budget_bytes,
                                 int64_t host_budget_bytes = RecomputeChoice::kNoLimit);
// The same through the positions of `order`.
RecomputeChoice choose_recompute(ForecastInputs inputs, const KeepOrder& order, int64_t budget_bytes,
                                 int64_t host_budget_bytes = RecomputeChoice::kNoLimit);

}  // namespace trireme
