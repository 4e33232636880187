#include "trireme/engine/agree_on_recompute.h"

#include <algorithm>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/comm/agreement.h"

namespace trireme {
namespace {

// Of two ranks' choices, the one that decides: that keeps less, then that does not fit, then the fuller memory.
bool has_less_room(const RecomputeChoice& a, const RecomputeChoice& b) {
  if (a.position != b.position) return a.position < b.position;
  if (a.fits() != b.fits()) return b.fits();
  return static_cast<double>(a.expected_bytes) * static_cast<double>(b.budget_bytes) >
         static_cast<double>(b.expected_bytes) * static_cast<double>(a.budget_bytes);
}

}  // namespace

std::optional<RecomputeChoice> agree_on_recompute(Group& all, const std::optional<RankBudget>& budget,
                                                  const ForecastInputs& inputs, EngineOptions& options) {
  if (options.recompute != Recompute::automatic) return std::nullopt;
  const PlannedBatch& batch = options.planned_batch;
  TRIREME_ASSERT(batch.known() || options.memory_budget_bytes == 0,
                 "a memory budget was given without the largest micro-batch that it is for");
  options.recompute = options.purpose == Purpose::evaluation ? Recompute::full : Recompute::keep_attention;
  if (!budget) return std::nullopt;

  Agreement agreement(all, options.device);
  ForecastInputs planned = with_batch(inputs, batch.samples, batch.tokens);
  planned.recompute.checkpoint_every = options.checkpoint_every;
  const RecomputeChoice rank_choice = choose_recompute(planned, budget->device_bytes, budget->host_bytes);
  std::vector<RecomputeChoice> of_ranks;
  for (const auto& row :
       agreement.gather<int64_t>({rank_choice.position, rank_choice.expected_bytes, rank_choice.budget_bytes,
                                  rank_choice.expected_host_bytes, rank_choice.host_budget_bytes}))
    of_ranks.push_back({{row[1], row[2], row[3], row[4]}, row[0], {}});
  RecomputeChoice choice = *std::min_element(of_ranks.begin(), of_ranks.end(), has_less_room);
  choice.plan =
      plan_keeping(KeepOrder(planned).at(choice.position), options.checkpoint_every, planned.model.layers);
  options.recompute = choice.plan.policy;
  options.keep_fraction = choice.plan.keep_fraction;
  options.keep_qkv_fraction = choice.plan.keep_qkv_fraction;
  options.keep_mlp_fraction = choice.plan.keep_mlp_fraction;
  return choice;
}

}  // namespace trireme
