// What the exit codes of ranks mean: which rank's end explains the end of the run, which code the launcher
// returns, and whether the run may restart. docs/launching.md shows the table.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trireme/launch/rank_end.h"

namespace trireme {

struct ExitMeaning {
  int code = 0;
  std::string meaning;
  bool restart_may_cure = false;
};

// All codes with which the program ends on purpose. A restart is not known to cure other codes.
const std::vector<ExitMeaning>& exit_meanings();

// The signal by which somebody other than the launcher asked this rank to stop, and so the whole run; 0:
// nobody did.
int asked_to_stop(const RankEnd& end);

// How the run ended: the code for the launcher, and whether another attempt may help.
struct Outcome {
  std::optional<RankEnd> culprit;  // none: all went well, or as asked
  bool hung = false;               // the culprit stood still while others waited for it
  int code = 0;
  bool may_restart = false;
};

// `ends` in the order in which ranks ended. The culprit is the rank that explains the end of the run:
//   1. the first rank that failed by itself: an error (a SystemFault too), or a signal that the launcher did
//      not send;
//   2. a rank that hung while others waited for it: a stopped rank, or the rank still for longest;
//   3. the first rank that lost a peer (75);
//   4. the first rank that ended when it was asked to.
// A rank whose error only points at another rank counts only if there is no better one.
//
// `stop_asked`: the user asked the run to stop. Ranks that ended because of the request are no culprits, and
// the code is 75.
Outcome judge(const std::vector<RankEnd>& ends, bool stop_asked);

}  // namespace trireme
