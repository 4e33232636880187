// Whether a run is expected to fit in its ranks' memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "trireme/comm/group.h"
#include "trireme/engine/engine_options.h"
#include "trireme/engine/rank_budget.h"
#include "trireme/forecast/forecast_inputs.h"
#include "trireme/forecast/memory_fit.h"

namespace trireme {

// Of the rank that has the least room.
struct FitOfRanks : MemoryFit {
  int64_t resident_layers = 0;
  int64_t most_resident_layers = 0;  // of any rank
};

// The same on every rank; none without a budget. Writes `inputs.resident_layers`, which may differ between
// ranks (forecast/choose_resident_layers.h). `inputs` are this rank's with the plan of
// recomputation, without a batch; `all` has every rank of the run. Collective.
std::optional<FitOfRanks> agree_on_memory_fit(Group& all, const std::optional<RankBudget>& budget,
                                              ForecastInputs& inputs, const EngineOptions& options);

// Empty where it fits; otherwise what is expected and the options that would help, for a person. `inputs` are
// the engine's with the planned batch.
std::string shortage_warning(const FitOfRanks& fit, ForecastInputs inputs);

}  // namespace trireme
