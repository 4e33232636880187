// Starts this machine's ranks of one attempt.
#pragma once

#include <string>
#include <vector>

#include "trireme/launch/launch.h"
#include "trireme/launch/rank_process.h"
#include "trireme/launch/run_control.h"

namespace trireme {

// The path of --program, else of this program.
std::string program_of(const LaunchOptions& options);

// `secret`: each rank proves that it knows it. Takes the socket from `start` for rank 0. Throws ConfigError
// if the program cannot be run; then no rank runs.
std::vector<RankProcess> start_ranks(const LaunchOptions& options, AttemptStart& start,
                                     const std::string& secret);

}  // namespace trireme
