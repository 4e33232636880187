// What --recompute auto means on one rank: of all plans the one that computes least again and fits into the
// rank's budgets.
//
//   ladder     full, groups of G .. 1 layers | attention on 1 .. L, groups of G .. 1 | q, k, v | the MLP -> none
//
// The rungs are in the order of what backward makes again (recompute_cost.h), so that where the parts of the line
// above lie depends on the lengths. Within groups of one size what is kept grows as keep_order.h says. G is
// about the root of L / 2: larger groups save less than their second forward takes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/forecast/keep_order.h"
#include "trireme/forecast/memory_fit.h"

namespace trireme {

// Layers of the largest group that --recompute auto and the planner take. With n layers a group, backward of full
// holds the inputs of L / n groups, and inputs and attention's outputs of n - 1 layers that ran again.
int64_t most_layers_of_group(int64_t layers);

// From the plan that makes most again to the one that makes least; the same on every rank. In groups of
// `checkpoint_every` layers, or of any size. `inputs` have a sample's tokens.
std::vector<RecomputePlan> recompute_ladder(ForecastInputs inputs, std::optional<int64_t> checkpoint_every);

struct RecomputeChoice : MemoryFit {
  int64_t rung = 0;  // of the ladder
  RecomputePlan plan;

  // "chosen: 61.2 GiB of 64.0 GiB", or that the formulas expect more than there is.
  std::string description() const;
};

// The last rung whose forecast is within both budgets; where none is, the one that exceeds them by least.
// `inputs` have a batch; their recompute plan is not read.
RecomputeChoice choose_recompute(ForecastInputs inputs, const std::vector<RecomputePlan>& ladder,
                                 int64_t budget_bytes, int64_t host_budget_bytes = MemoryFit::kNoLimit);

}  // namespace trireme
