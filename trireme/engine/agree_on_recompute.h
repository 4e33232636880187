// What --recompute auto comes to in a run of many ranks: every rank looks which plans fit into its budget
// (rank_budget.h, choose_recompute.h); all take the one that makes least again of those that fit every rank.
#pragma once

#include <optional>

#include "trireme/comm/group.h"
#include "trireme/engine/engine_options.h"
#include "trireme/engine/rank_budget.h"
#include "trireme/forecast/choose_recompute.h"

namespace trireme {

// Writes `options.recompute`: its layers, and what was left open (Recompute::automatic, groups of 0 layers).
// Training with a planned batch: the choice, the same on every rank, with the numbers of the rank that has
// the least room. Otherwise none: another policy was asked for; an evaluation keeps nothing for backward;
// with a batch that is unknown, or too short for its ranks, it is keep_attention. `inputs` are this rank's,
// without a batch; `all` has every rank of the run. Collective; before a rank allocates what the formulas
// count.
std::optional<RecomputeChoice> agree_on_recompute(Group& all, const std::optional<RankBudget>& budget,
                                                  const ForecastInputs& inputs, EngineOptions& options);

}  // namespace trireme
