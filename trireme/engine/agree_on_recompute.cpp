#include "trireme/engine/agree_on_recompute.h"

#include <algorithm>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/comm/agreement.h"

namespace trireme {
namespace {

// Of two ranks' choices, the one that decides: that does not fit, then that computes more again, then the fuller
// memory.
bool has_less_room(const RecomputeChoice& a, const RecomputeChoice& b) {
  if (a.fits() != b.fits()) return b.fits();
  if (a.rung != b.rung) return a.rung < b.rung;
  return static_cast<double>(a.expected_bytes) * static_cast<double>(b.budget_bytes) >
         static_cast<double>(b.expected_bytes) * static_cast<double>(a.budget_bytes);
}

}  // namespace

std::optional<RecomputeChoice> agree_on_recompute(Group& all, const std::optional<RankBudget>& budget,
                                                  const ForecastInputs& inputs, EngineOptions& options) {
  const std::optional<int64_t> asked_every =
      options.checkpoint_every > 0 ? std::optional(options.checkpoint_every) : std::nullopt;
  options.checkpoint_every = asked_every.value_or(1);
  if (options.recompute != Recompute::automatic) return std::nullopt;
  const PlannedBatch& batch = options.planned_batch;
  TRIREME_ASSERT(batch.known() || options.memory_budget_bytes == 0,
                 "a memory budget was given without the largest micro-batch that it is for");
  options.recompute = options.purpose == Purpose::evaluation ? Recompute::full : Recompute::keep_attention;
  if (!budget) return std::nullopt;

  Agreement agreement(all, options.device);
  const ForecastInputs planned = with_batch(inputs, batch.samples, batch.tokens);
  const std::vector<RecomputePlan> ladder = recompute_ladder(planned, asked_every);
  const RecomputeChoice rank_choice =
      choose_recompute(planned, ladder, budget->device_bytes, budget->host_bytes);
  std::vector<RecomputeChoice> of_ranks;
  for (const auto& row :
       agreement.gather<int64_t>({rank_choice.rung, rank_choice.expected_bytes, rank_choice.budget_bytes,
                                  rank_choice.expected_host_bytes, rank_choice.host_budget_bytes}))
    of_ranks.push_back({{row[1], row[2], row[3], row[4]}, row[0], {}});
  RecomputeChoice choice = *std::min_element(of_ranks.begin(), of_ranks.end(), has_less_room);
  choice.plan = ladder[static_cast<size_t>(choice.rung)];
  options.recompute = choice.plan.policy;
  options.checkpoint_every = choice.plan.checkpoint_every;
  options.keep_fraction = choice.plan.keep_fraction;
  options.keep_qkv_fraction = choice.plan.keep_qkv_fraction;
  options.keep_mlp_fraction = choice.plan.keep_mlp_fraction;
  return choice;
}

}  // namespace trireme
