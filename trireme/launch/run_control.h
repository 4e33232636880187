// Decides when an attempt starts, how it ended, and whether another follows. On one machine its launcher
// decides. On several machines the launcher of machine 0 decides (first_machine.cpp), and the others obey
// (other_machine.cpp).
#pragma once

#include <iosfwd>
#include <memory>
#include <optional>
#include <poll.h>
#include <string>
#include <vector>

#include "trireme/base/listening_socket.h"
#include "trireme/launch/launch.h"
#include "trireme/launch/rank_end.h"
#include "trireme/launch/taken_signals.h"

namespace trireme {

// News from the launchers of the other machines.
struct PeerNews {
  bool failure = false;  // one of their ranks failed, or a launcher is lost
  int stop_signal = 0;   // one of them was asked to stop
};

struct Conclusion {
  bool again = false;  // another attempt follows
  int code = 0;        // what the launcher returns if none follows
  std::string report;  // for people, on stderr
};

struct AttemptStart {
  int attempt = 0;
  std::string run_id = {};                       // of all attempts of this launch
  int port = 0;                                  // on machine 0, where the ranks meet
  std::unique_ptr<ListeningSocket> socket = {};  // at that port; rank 0 inherits it
  std::optional<Conclusion> over = {};           // if set, the run is over
};

// The name of a launch and all its attempts: the one of the options, else a random one.
std::string run_id(const LaunchOptions& options);

class RunControl {
 public:
  virtual ~RunControl() = default;
  RunControl& operator=(RunControl&&) = delete;
  // Throws CommError when the launchers of other machines do not come.
  virtual AttemptStart start(int attempt) = 0;

  // Called while the attempt runs; none of these functions waits for news.
  virtual void add_to(std::vector<pollfd>& /*waiting*/) const {}
  virtual PeerNews read() { return {}; }
  virtual void tell(const RankEnd& /*end*/) {}
  virtual void tell_stop(int /*signal*/) {}
  // Whether other machines' ranks are still running, or the conclusion is still to come.
  virtual bool waits() const { return false; }

  // Called after the attempt. `rank_ends` are those of this machine's ranks.
  virtual Conclusion conclude(const std::vector<RankEnd>& rank_ends, int stop_signal) = 0;
  // Cancels the next attempt: a request to stop came between two attempts.
  virtual void cancel(const Conclusion& /*conclusion*/) {}
};

// The run on one machine.
std::unique_ptr<RunControl> one_machine(const LaunchOptions& options);
// On machine 0 of several. Listens at --master_port for the launchers of the other machines. Throws
// ConfigError. `err` receives messages while a launcher waits for others.
std::unique_ptr<RunControl> first_machine(const LaunchOptions& options, const std::string& secret,
                                          TakenSignals& signals, std::ostream& err);
// On another machine than machine 0.
std::unique_ptr<RunControl> other_machine(const LaunchOptions& options, const std::string& secret,
                                          TakenSignals& signals, std::ostream& err);

// The conclusion from the ends of all ranks of attempt `attempt`.
Conclusion decide(const LaunchOptions& options, int attempt, const std::vector<RankEnd>& ends,
                  int stop_signal);
// The conclusion if the run was asked to stop while no rank ran.
Conclusion stopped_between_attempts(int stop_signal);

}  // namespace trireme
