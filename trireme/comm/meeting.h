// Who has come to the store of the run, and whether they are one run: every rank once, of one size, program and attempt.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>

#include "trireme/comm/rank_place.h"
#include "trireme/comm/store_messages.h"

namespace trireme {

class Meeting {
 public:
  // `place` is rank 0's, which holds the store.
  explicit Meeting(const RankPlace& place) : place_(place) {}

  // A rank that proved the secret has come. What it is told alone; nothing: it hears what all hear.
  std::optional<Verdict> come(const Hello& hello);
  // Someone's proof did not hold: a stranger, or a rank that was given another secret. The run goes on.
  void turn_away(const Hello& claimed);
  // A rank that had come is gone.
  void leave(const Hello& hello);
  // The time for coming is over.
  void end(double waited_seconds);

  // What all ranks hear; nothing while some are still to come.
  std::optional<Verdict> verdict() const { return verdict_; }
  // Whether each rank from 0 to size has come.
  bool all_have_come() const { return static_cast<int>(came_.size()) == place_.size; }

 private:
  void decide(Verdict::Kind kind, const std::string& reason);

  RankPlace place_;
  std::map<int, Hello> came_;
  std::map<int, Hello> turned_away_;
  std::optional<Verdict> verdict_;
};

}  // namespace trireme
