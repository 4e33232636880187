// What --recompute auto means on one rank: of all plans the one that computes least again and fits into the
// rank's budgets.
//
//   long samples     full, inputs of every 4th .. 1st layer | attention on 1 .. L, at most every 4th input |
//                    inputs of every 3rd .. 1st layer | q, k, v | the MLP -> none
//   shorter ones     full, inputs of every 4th .. 1st layer | attention on 1 .. L | q, k, v | the MLP -> none
//
// All plans are rungs of one ladder, in the order of what backward makes again (recompute_cost.h): the
// lines above are their gist. In groups of one size what is kept grows as keep_order.h says.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/forecast/keep_order.h"
#include "trireme/forecast/memory_fit.h"

namespace trireme {

// Layers of a group that --recompute auto and the planner choose from: as many as asked, at most all, or any
// number up to the largest. With n layers a group, backward of full holds the inputs of L / n groups, and
// inputs and attention's outputs of n - 1 layers that ran again: so about the root of L / 2. Where
// activations leave, the former are elsewhere: at most 8 layers, and four groups.
struct GroupSizes {
  int64_t fewest = 1, most = 1;
};
GroupSizes sizes_of_groups(std::optional<int64_t> checkpoint_every, int64_t layers, Offload activations);

// From the plan that makes most again to the one that makes least, in groups of these sizes; the same on
// every rank. `inputs` have a sample's tokens.
std::vector<RecomputePlan> recompute_ladder(ForecastInputs inputs, std::optional<int64_t> checkpoint_every);

// By how many bytes the forecast of each rung exceeds the budgets; 0 where it fits. `inputs` have a batch;
// their recompute plan is not read.
std::vector<int64_t> bytes_over_of_rungs(const ForecastInputs& inputs,
                                         const std::vector<RecomputePlan>& ladder, int64_t budget_bytes,
                                         int64_t host_budget_bytes);
// The last rung that fits; where none does, the first of those that exceed by least.
int64_t rung_that_fits(const std::vector<int64_t>& bytes_over_of_rungs);

struct RecomputeChoice : MemoryFit {
  int64_t rung = 0;  // of the ladder
  RecomputePlan plan;

  // "chosen: 61.2 GiB of 64.0 GiB", or that the formulas expect more than there is.
  std::string description() const;
};

// Of one rung, told with its forecast.
RecomputeChoice choice_of_rung(const ForecastInputs& inputs, const std::vector<RecomputePlan>& ladder,
                               int64_t rung, int64_t budget_bytes, int64_t host_budget_bytes);

// Of one rank by itself.
RecomputeChoice choose_recompute(const ForecastInputs& inputs, const std::vector<RecomputePlan>& ladder,
                                 int64_t budget_bytes, int64_t host_budget_bytes = MemoryFit::kNoLimit);

}  // namespace trireme
