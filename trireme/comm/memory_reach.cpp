#include "trireme/comm/memory_reach.h"

#include "trireme/base/error.h"

namespace trireme {

MemoryReach::MemoryReach(int rank, const std::vector<Json>& cards) {
  for (int peer = 0; peer < static_cast<int>(cards.size()); ++peer) {
    processes_.push_back(cards[peer].is_null() ? nullptr : std::make_shared<PeerProcess>(cards[peer]));
    if (processes_[peer] == nullptr || peer == rank) continue;
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
  for (const int reader : world_ranks) {
    for (const int peer : world_ranks) {
      if (peer == reader) continue;
      if (reader >= static_cast<int>(of_ranks_.size()) || processes_[peer] == nullptr)
        return cat("rank ", peer, " takes no part in exchanges through memory");
      const Found& theirs = of_ranks_[reader];
      if (theirs.reached.contains(peer)) continue;
      return theirs.first_failure.empty()
                 ? cat("rank ", reader, " and rank ", peer, " are on different machines or in containers")
                 : theirs.first_failure;
    }
  }
  return {};
}

}  // namespace trireme
