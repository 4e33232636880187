#include "trireme/comm/meeting.h"

#include "trireme/base/error.h"
#include "trireme/base/rank_list.h"
#include "trireme/base/sizes.h"

namespace trireme {

void Meeting::decide(Verdict::Kind kind, const std::string& reason) {
  if (verdict_) return;
  // The verdict's message stays below kLargestHello_bytes.
  constexpr size_t kMost = 3000;
  verdict_ = Verdict{kind, reason};
  if (reason.size() > kMost) verdict_->reason.replace(kMost, std::string::npos, " ...");
}

std::optional<Verdict> Meeting::come(const Hello& hello) {
  if (hello.attempt != identity_.attempt)
    return Verdict{Verdict::Kind::come_later,
                   cat("rank 0 is in attempt ", identity_.attempt, " of the run, and rank ", hello.rank,
                       " in attempt ", hello.attempt)};
  if (hello.first && verdict_ && verdict_->kind == Verdict::Kind::go)
    return Verdict{Verdict::Kind::come_later, cat("the run has begun without ", hello.name())};
  const bool in_range = hello.rank >= 0 && hello.rank < identity_.size;
  const bool again = hello.first && in_range && !came_.emplace(hello.rank, hello).second;
  if (hello.size != identity_.size) {
    decide(Verdict::Kind::differing,
           cat(hello.name(), " was started with WORLD_SIZE ", hello.size, ", rank 0 with ", identity_.size,
               "; start all ranks with the same"));
  } else if (!in_range) {
    decide(Verdict::Kind::differing, cat(hello.name(), " is not one of the ranks 0 to ", identity_.size - 1));
  } else if (hello.version != program_version()) {
    decide(Verdict::Kind::differing,
           cat(hello.name(), " runs version ", hello.version, " of the program, rank 0 version ",
               program_version(), "; install the same everywhere"));
  } else if (again) {
    decide(Verdict::Kind::differing,
           cat("two processes were started with RANK ", hello.rank, ": ", came_.at(hello.rank).name(),
               " and ", hello.name(), "; give each its own"));
  }
  if (all_have_come()) decide(Verdict::Kind::go, "");
  return std::nullopt;
}

void Meeting::turn_away(const Hello& claimed) {
  if (claimed.rank >= 0 && claimed.rank < identity_.size) turned_away_.emplace(claimed.rank, claimed);
}

void Meeting::leave(const Hello& hello) {
  if (hello.first) decide(Verdict::Kind::missing, cat(hello.name(), " ended before all ranks had come"));
}

void Meeting::end(double waited_seconds) {
  constexpr int kMostNamed = 8;
  std::set<int> missing;
  std::string turned_away;
  int count = 0;
  for (int rank = 0; rank < identity_.size; ++rank) {
    if (came_.count(rank) != 0) continue;
    missing.insert(rank);
    const auto known = turned_away_.find(rank);
    if (known != turned_away_.end() && ++count <= kMostNamed)
      turned_away += cat("; ", known->second.name(), " did not prove the run's secret: it has ",
                         known->second.secret_origin, ", rank 0 has ", identity_.secret.origin);
  }
  if (count > kMostNamed) turned_away += cat("; and ", count - kMostNamed, " more");
  if (count > 0) turned_away += "; give all ranks the same TRIREME_SECRET (docs/security.md)";
  // A peer that was turned away may be a stranger that claims a rank: its message decides nothing.
  decide(Verdict::Kind::missing, cat(rank_list(missing), " of ", identity_.size, " did not come within ",
                                     format_fixed(waited_seconds, 1), " s", turned_away));
}

}  // namespace trireme
