// Memory that one rank may plan with: its share of what its device, and the host beside a GPU, have left.
#pragma once

#include <cstdint>
#include <optional>

#include "trireme/comm/world.h"
#include "trireme/engine/engine_options.h"
#include "trireme/forecast/forecast_inputs.h"

namespace trireme {

struct RankBudget {
  int64_t device_bytes = 0;
  int64_t host_bytes = 0;  // MemoryFit::kNoLimit on a CPU, whose memory is the device's
};

// By the options where they give it, else by what is left now: so once, before a rank allocates what the
// formulas count. None where nothing is planned with it: in an evaluation, for a batch that is unknown or
// has fewer tokens than ranks (it is refused when it comes), and on a CPU with another policy than
// --recompute auto. Collective over `all`, which has every rank of the run.
std::optional<RankBudget> rank_budget(const World& world, Group& all, const ForecastInputs& inputs,
                                      const EngineOptions& options);

}  // namespace trireme
