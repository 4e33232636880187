// Who decides when an attempt starts, how it ended, and whether another follows: the one launcher of a run on one
// machine; over several, the launcher of machine 0 (first_machine.h), and the others do what it says (other_machine.h).
#pragma once

#include <memory>
#include <optional>
#include <poll.h>
#include <string>
#include <vector>

#include "trireme/base/listening_socket.h"
#include "trireme/launch/launch.h"
#include "trireme/launch/rank_end.h"

namespace trireme {

// What the launchers of the other machines said.
struct PeerNews {
  bool failure = false;  // one of their ranks failed, or a launcher is lost
  int stop_signal = 0;   // one of them was asked to stop
};

struct Conclusion {
  bool again = false;  // another attempt follows
  int code = 0;        // what the launcher returns, where none does
  std::string report;  // for people, on stderr
};

struct AttemptStart {
  int attempt = 0;
  std::string run_id = {};                       // of all attempts of this launch
  int port = 0;                                  // of machine 0, where the ranks meet
  std::unique_ptr<ListeningSocket> socket = {};  // there; rank 0 inherits it
  std::optional<Conclusion> over = {};           // instead: the run is over
};

class RunControl {
 public:
  virtual ~RunControl() = default;
  RunControl& operator=(RunControl&&) = delete;
  // Throws CommError when the launchers of other machines are lost.
  virtual AttemptStart start(int attempt) = 0;

  // While the attempt runs; none of these blocks.
  virtual void add_to(std::vector<pollfd>& /*waiting*/) const {}
  virtual PeerNews read() { return {}; }
  virtual void tell(const RankEnd& /*end*/) {}
  virtual void tell_stop(int /*signal*/) {}
  // Whether other machines' ranks are still running, or the conclusion is still to come.
  virtual bool waits() const { return false; }

  // After it. `own` are the ends of this machine's ranks.
  virtual Conclusion conclude(const std::vector<RankEnd>& own, int stop_signal) = 0;
  // No other attempt, though one was to follow: asked to stop between the two.
  virtual void cancel(const Conclusion& /*conclusion*/) {}
};

// The run on one machine.
std::unique_ptr<RunControl> one_machine(const LaunchOptions& options);

// What these ends of all ranks of attempt `attempt` lead to.
Conclusion decide(const LaunchOptions& options, int attempt, const std::vector<RankEnd>& ends,
                  int stop_signal);
// The run was asked to stop when no rank ran.
Conclusion stopped_between_attempts(int stop_signal);

// A new name for one launch.
std::string make_run_id();

}  // namespace trireme
