#include "trireme/launch/restart_rule.h"

namespace trireme {

std::optional<RankEnd> culprit(const std::vector<RankEnd>& ends) {
  std::optional<RankEnd> lost_peer, told;
  for (const RankEnd& end : ends) {
    if (!end.failed()) continue;
    if (end.ended_by_us) {
      if (!told) told = end;
    } else if (end.signal == 0 && end.code == kLostPeer) {
      if (!lost_peer) lost_peer = end;
    } else {
      return end;
    }
  }
  return lost_peer ? lost_peer : told;
}

bool may_restart(const std::vector<RankEnd>& ends) {
  for (const RankEnd& end : ends) {
    if (end.signal == 0 && would_come_again(end.code)) return false;
  }
  const auto end = culprit(ends);
  return end && !end->ended_by_us && (end->signal != 0 || end->code == kLostPeer);
}

}  // namespace trireme
