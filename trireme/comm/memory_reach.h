// Which ranks of the run can exchange through memory: those that can all read each other's (peer_memory.h).
// Every rank tries its neighbours and tells what it found, so all ranks choose alike.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "trireme/comm/peer_memory.h"

namespace trireme {

class MemoryReach {
 public:
  MemoryReach() = default;  // nobody reaches anybody
  // `cards` by rank: MemoryProof::card(), or null from a rank that takes no part. Tries to read every other
  // rank, unless this one takes no part; `found()` is what the others are to hear.
  MemoryReach(int rank, const std::vector<Json>& cards);
  Json found() const;
  // What every rank found, by rank.
  void hear(const std::vector<Json>& of_ranks);

  // Why these ranks cannot exchange through memory; empty: they can. Equal on all ranks.
  std::string why_not(const std::vector<int>& world_ranks) const;
  // This rank and those in a container with it, of those that take part; none where this rank does not.
  std::vector<int> ranks_of_this_machine() const;
  const std::shared_ptr<const PeerProcess>& process(int rank) const { return processes_.at(rank); }

 private:
  struct Found {
    std::set<int> reached;
    std::string first_failure;  // of a rank of this machine; empty: none
  };
  std::vector<char> takes_part_;
  std::vector<std::shared_ptr<const PeerProcess>> processes_;  // null: that rank or this one takes no part
  Found found_;
  std::vector<Found> of_ranks_;
};

}  // namespace trireme
