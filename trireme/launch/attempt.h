// One attempt at a run: watches this machine's ranks until all have ended, passes on the requests of signals
// and of other machines' launchers, and ends the other ranks if one fails.
#pragma once

#include <vector>

#include "trireme/launch/run_control.h"
#include "trireme/launch/running_rank.h"
#include "trireme/launch/taken_signals.h"

namespace trireme {

struct AttemptResult {
  std::vector<RankEnd> ends;  // of this machine's ranks, in the order in which they ended
  int stop_signal = 0;        // that asked the run to stop, on this or another machine
};

AttemptResult watch(std::vector<RankProcess> ranks, const LaunchOptions& options, TakenSignals& signals,
                    RunControl& control, const RankStreams& streams);

}  // namespace trireme
