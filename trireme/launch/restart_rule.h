// What the exit codes of ranks say: which rank's end explains the end of the run, what the launcher returns, and whether
// the run may be started again. docs/launching.md shows the table.
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

// All codes that the program ends with on purpose. Other codes are not known to be curable.
const std::vector<ExitMeaning>& exit_meanings();

// `ends` in the order in which ranks ended. The rank that explains the end of the run:
//   1. the first that failed of its own accord: an error, or a signal that the launcher did not send;
//   2. one that hung while others waited for it: stopped, or standing still the longest;
//   3. the first that lost a peer (75);
//   4. the first that ended when it was asked to.
// Of those whose error only points at another rank, one counts when there is no better.
std::optional<RankEnd> culprit(const std::vector<RankEnd>& ends);

// The signal by which somebody else than the launcher asked this rank to stop; 0: nobody did. Then the whole run is to
// stop.
int asked_to_stop(const RankEnd& end);

// How the run ended: the code for the launcher, and whether another attempt may help.
struct Outcome {
  std::optional<RankEnd> culprit;  // none: all went well, or as asked
  bool hung = false;               // the culprit stood still while others waited for it
  int code = 0;
  bool may_restart = false;
};

// `stop_asked`: the user asked the run to stop. Ranks that ended because of that explain nothing, and it returns 75.
Outcome judge(const std::vector<RankEnd>& ends, bool stop_asked);

}  // namespace trireme
