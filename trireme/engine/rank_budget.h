// Memory that one rank may plan with: its share of what its device, and the host beside a GPU, have left.
#pragma once

#include <cstdint>

#include "trireme/comm/agreement.h"
#include "trireme/comm/world.h"
#include "trireme/engine/engine_options.h"

namespace trireme {

struct RankBudget {
  int64_t device_bytes = 0;
  int64_t host_bytes = 0;  // MemoryFit::kNoLimit on a CPU, whose memory is the device's
};

// By the options where they give it, else by what is left now: so before a rank allocates what the formulas
// count. Collective.
RankBudget rank_budget(const World& world, Agreement& agreement, const EngineOptions& options);

}  // namespace trireme
