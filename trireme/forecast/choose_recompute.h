// What --recompute auto means on one rank: keep what costs most time a byte to make again, on as many of the
// last layers as the memory formulas fit into a budget.
//
//   position of keep_order.h    0 -> full    L (attention first) -> keep_attention    3 L -> none
//
// So a step computes nothing twice where there is memory for that.
#pragma once

#include <cstdint>
#include <string>

#include "trireme/forecast/keep_order.h"
#include "trireme/forecast/memory_fit.h"

namespace trireme {

struct RecomputeChoice : MemoryFit {
  int64_t position = 0;  // of the keep order
  RecomputePlan plan;

  // "chosen: 61.2 GiB of 64.0 GiB", or that the formulas expect more than there is.
  std::string description() const;
};

// The furthest position whose forecast is within both budgets; 0 where not even that fits. `inputs` have a
// batch; of their recompute plan checkpoint_every alone is read.
RecomputeChoice choose_recompute(const ForecastInputs& inputs, int64_t budget_bytes,
                                 int64_t host_budget_bytes = MemoryFit::kNoLimit);
// The same through the positions of `order`.
RecomputeChoice choose_recompute(ForecastInputs inputs, const KeepOrder& order, int64_t budget_bytes,
                                 int64_t host_budget_bytes = MemoryFit::kNoLimit);

}  // namespace trireme
