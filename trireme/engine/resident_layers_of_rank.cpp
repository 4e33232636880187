#include "trireme/engine/resident_layers_of_rank.h"

#include "trireme/comm/agreement.h"
#include "trireme/engine/rank_budget.h"
#include "trireme/forecast/choose_resident_layers.h"

namespace trireme {

int64_t resident_layers_of_rank(const World& world, Group& all, const ForecastInputs& inputs,
                                const EngineOptions& options) {
  const PlannedBatch& batch = options.planned_batch;
  if (options.purpose == Purpose::evaluation || options.offload.activations != Offload::cpu ||
      options.device.is_cpu() || !batch.known() || batch.tokens < inputs.ulysses * inputs.ring)
    return inputs.resident_layers;
  Agreement agreement(all, options.device);
  ForecastInputs planned = with_batch(inputs, batch.samples, batch.tokens);
  const RankBudget budget = rank_budget(world, agreement, options);
  // The meeting point before which no rank allocates what others would then not find left.
  agreement.all_or_none("planning with memory",
                        [&] { choose_resident_layers(planned, budget.device_bytes, budget.host_bytes); });
  return planned.resident_layers;
}

}  // namespace trireme
