// The launcher's report on a failed attempt: which rank is to blame, what it was doing, and its last output.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/launch/restart_rule.h"

namespace trireme {

// Where the ranks' output can be read.
enum class RanksShown : uint8_t { here, by_their_launchers };

// "rank 1 (process 4242 on node7) was killed by signal 9 (Killed). It was in all_to_all ...": whole
// lines. Empty if no rank is to blame.
std::string report(const Outcome& outcome, const std::vector<RankEnd>& ends, RanksShown shown);

// "ranks 1, 3 did not end within 1800 s and were killed": of ranks that were asked to stop. Empty if all
// ended.
std::string report_of_killed(const std::vector<RankEnd>& ends, const std::string& after);

}  // namespace trireme
