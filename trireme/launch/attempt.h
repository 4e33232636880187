// One attempt at a run: watches over started ranks until all have ended.
#pragma once

#include <memory>
#include <vector>

#include "trireme/launch/launch.h"
#include "trireme/launch/rank_output.h"
#include "trireme/launch/rank_process.h"

namespace trireme {

// Blocks the signals that the launcher takes over for as long as it lives; they can be read from
// `descriptor`.
class TakenSignals {
 public:
  TakenSignals();
  ~TakenSignals();
  TakenSignals(const TakenSignals&) = delete;
  TakenSignals& operator=(const TakenSignals&) = delete;
  int descriptor() const { return descriptor_; }
  // The next signal that came, 0 when there is none. Does not block.
  int next() const;

 private:
  struct Saved;
  std::unique_ptr<Saved> saved_;
  int descriptor_ = -1;
};

struct AttemptResult {
  std::vector<RankEnd> ends;                        // in the order in which they ended
  std::vector<std::deque<std::string>> last_lines;  // of stderr, by place among this machine's ranks
  int stop_signal = 0;                              // SIGINT, SIGTERM or SIGHUP that the launcher was sent
};

// Where the ranks' two streams end up.
struct RankStreams {
  OutputSink& out;
  OutputSink& err;
  RankStdout rank_stdout = RankStdout::prefixed;
};

// `first_rank` is the lowest rank of this machine.
AttemptResult watch(const std::vector<RankProcess>& ranks, int first_rank, double grace_seconds,
                    const TakenSignals& signals, const RankStreams& streams);

}  // namespace trireme
