#include "trireme/engine/agree_on_recompute.h"

#include <algorithm>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/comm/agreement.h"

namespace trireme {

std::optional<RecomputeChoice> agree_on_recompute(Group& all, const std::optional<RankBudget>& budget,
                                                  const ForecastInputs& inputs, EngineOptions& options) {
  RecomputePlan& plan = options.recompute;
  plan.layers = inputs.model.layers;
  std::optional<int64_t> asked_every;
  if (plan.checkpoint_every > 0) asked_every = plan.checkpoint_every;
  plan.checkpoint_every = sizes_of_groups(asked_every, plan.layers, options.offload.activations).fewest;
  if (plan.policy != Recompute::automatic) return std::nullopt;
  const PlannedBatch& batch = options.planned_batch;
  TRIREME_ASSERT(batch.known() || options.memory_budget_bytes == 0,
                 "a memory budget was given without the largest micro-batch that it is for");
  plan.policy = options.purpose == Purpose::evaluation ? Recompute::full : Recompute::keep_attention;
  if (!budget) return std::nullopt;

  Agreement agreement(all, options.device);
  ForecastInputs planned = with_batch(inputs, batch.samples, batch.tokens);
  planned.document_tokens = batch.document_tokens;
  const std::vector<RecomputePlan> ladder = recompute_ladder(planned, asked_every);
  // Less that is made again is not always more that is held, so that each rank is asked of every rung.
  const int64_t rung = rung_that_fits(
      agreement.largest(bytes_over_of_rungs(planned, ladder, budget->device_bytes, budget->host_bytes)));
  const RecomputeChoice of_rank =
      choice_of_rung(planned, ladder, rung, budget->device_bytes, budget->host_bytes);
  plan = of_rank.plan;
  const std::vector<MemoryFit> of_ranks = agreement.gather_one<MemoryFit>(of_rank);
  return RecomputeChoice{*std::ranges::max_element(of_ranks, {}, &MemoryFit::fullness), rung, plan};
}

}  // namespace trireme
