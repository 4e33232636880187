// Which rank's end explains the end of the run, and whether the run may be started again.
#pragma once

#include <optional>
#include <vector>

#include "trireme/launch/rank_process.h"

namespace trireme {

// Exit codes of trireme that matter here (base/error.h): CommError; and ConfigError, DataError,
// InternalError, which would only come again.
constexpr int kLostPeer = 75;
inline bool would_come_again(int code) {
  return code == 78 || code == 65 || code == 70;
}

// The first end that failed of its own accord; one that only lost a peer (75) counts when there is no other.
std::optional<RankEnd> culprit(const std::vector<RankEnd>& ends);

// After exit 75 or a signal that the launcher did not send; never when any rank ended 78, 65 or 70.
bool may_restart(const std::vector<RankEnd>& ends);

}  // namespace trireme
