// Machine 0 listens for the launchers of the other machines and turns strangers away.
#pragma once

#include <list>
#include <map>
#include <ostream>
#include <string>

#include "trireme/base/listening_socket.h"
#include "trireme/launch/launch.h"
#include "trireme/launch/launcher_link.h"
#include "trireme/launch/taken_signals.h"

namespace trireme {

// The launcher of another machine, which has proved the secret.
struct PeerLauncher {
  std::string host;
  LauncherLink link;
};

class WaitingRoom {
 public:
  WaitingRoom(const LaunchOptions& options, std::string secret);
  // Waits until all have come; returns early, with some missing, if asked to stop. Throws CommError that
  // names the machines that did not come within --join_seconds, ConfigError if one was started with other
  // numbers.
  std::map<int, PeerLauncher> wait(TakenSignals& signals, std::ostream& err);
  int port() const { return socket_.port(); }

 private:
  // A connection whose launcher has not proved the secret yet.
  struct Guest {
    LauncherLink link;
    double since = 0;
    std::string nonce;
    std::optional<LauncherHello> hello;
  };
  // Returns false where the system gives no connection for now.
  bool accept();
  // Returns whether the guest was let in or turned away.
  bool serve(Guest& guest, std::ostream& err);
  void let_in(Guest& guest);
  // Removes launchers that came and went: another may come with the same number.
  void forget_the_lost(double now, std::ostream& err);
  std::string missing() const;

  const LaunchOptions& options_;
  std::string secret_;
  ListeningSocket socket_;
  std::list<Guest> guests_;
  std::map<int, PeerLauncher> peers_;
};

}  // namespace trireme
