// Starts this machine's ranks of one attempt.
#pragma once

#include <string>
#include <vector>

#include "trireme/launch/launch.h"
#include "trireme/launch/rank_process.h"
#include "trireme/launch/run_control.h"

namespace trireme {

// `secret`: what the ranks prove to each other. Takes the socket away from `start`: it is rank 0's. Throws ConfigError
// when the program cannot be run; then none runs.
std::vector<RankProcess> start_ranks(const LaunchOptions& options, AttemptStart& start,
                                     const std::string& secret);

}  // namespace trireme
