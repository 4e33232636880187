// Records which ranks have come to the store, and decides whether they are one run: every rank once, all with
// the same size, program and attempt.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "trireme/comm/rank_identity.h"
#include "trireme/comm/store_messages.h"

namespace trireme {

class Meeting {
 public:
  // `identity` describes rank 0, which holds the store.
  explicit Meeting(const RankIdentity& identity) : identity_(identity) {}

  // A rank that proved the secret has come. Returns a verdict for this rank only, or nullopt: it gets the
  // common one.
  std::optional<Verdict> come(const Hello& hello);
  // A stranger, or a rank with another secret, gave a wrong proof. The run goes on.
  void turn_away(const Hello& claimed);
  // A rank that had come is gone.
  void leave(const Hello& hello);
  // The time in which ranks may come is over.
  void end(double waited_seconds);

  // The verdict for all ranks; nullopt while some ranks are still to come.
  std::optional<Verdict> verdict() const { return verdict_; }
  // Whether each rank from 0 to size - 1 has come.
  bool all_have_come() const { return static_cast<int>(came_.size()) == identity_.size; }

 private:
  void decide(Verdict::Kind kind, const std::string& reason);

  RankIdentity identity_;
  std::map<int, Hello> came_;
  std::map<int, Hello> turned_away_;
  std::optional<Verdict> verdict_;
};

}  // namespace trireme
