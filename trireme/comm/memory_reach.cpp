#include "trireme/comm/memory_reach.h"

#include "trireme/base/error.h"

namespace trireme {

MemoryReach::MemoryReach(int rank, const std::vector<Json>& cards) {
  for (int peer = 0; peer < static_cast<int>(cards.size()); ++peer) {
    takes_part_.push_back(cards[peer].is_null() ? 0 : 1);
    // A rank that takes no part reads nobody.
    const bool reads = takes_part_[peer] != 0 && !cards[rank].is_null();
    processes_.push_back(reads ? std::make_shared<PeerProcess>(cards[peer]) : nullptr);
    if (!reads || peer == rank) continue;
    const std::string why = processes_[peer]->why_unreadable();
    if (why.empty()) {
      found_.reached.insert(peer);
    } else if (processes_[peer]->on_this_machine() && found_.first_failure.empty()) {
      found_.first_failure = cat("rank ", rank, " cannot read from rank ", peer, ": ", why);
    }
  }
}

Json MemoryReach::found() const {
  return {{"reached", found_.reached}, {"failure", found_.first_failure}};
}

void MemoryReach::hear(const std::vector<Json>& of_ranks) {
  for (const Json& told : of_ranks) of_ranks_.push_back({told.at("reached"), told.at("failure")});
}

std::string MemoryReach::why_not(const std::vector<int>& world_ranks) const {
  for (const int rank : world_ranks) {
    if (rank >= static_cast<int>(takes_part_.size()) || takes_part_[rank] == 0)
      return cat("rank ", rank, " takes no part in exchanges through memory");
  }
  for (const int reader : world_ranks) {
    const Found& theirs = of_ranks_[reader];
    for (const int peer : world_ranks) {
      if (peer == reader || theirs.reached.contains(peer)) continue;
      return theirs.first_failure.empty()
                 ? cat("rank ", reader, " and rank ", peer, " are on different machines or in containers")
                 : theirs.first_failure;
    }
  }
  return {};
}

std::vector<int> MemoryReach::ranks_of_this_machine() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < static_cast<int>(processes_.size()); ++rank) {
    if (processes_[rank] != nullptr && processes_[rank]->on_this_machine()) ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace trireme
