// `trireme bench step --simulate_ranks P`: one device in place of P (measure/simulated_rank.h).
#pragma once

#include <optional>

#include "trireme/cli/bench.h"
#include "trireme/plan/hardware_profile.h"

namespace trireme {

// Throws ConfigError: a launcher started several ranks, or what a run on P ranks is refused for.
int run_simulated_step(const BenchStepFlags& flags, const OptionParser& parser,
                       const std::optional<HardwareProfile>& hardware);

}  // namespace trireme
