// The launcher of one host of a run over ssh, as a child of the first launcher: ssh, or on this machine the
// program itself. Its output passes through in whole lines; they have the names of its ranks already.
#pragma once

#include <deque>
#include <optional>
#include <ostream>
#include <string>
#include <sys/types.h>
#include <vector>

#include "trireme/base/file_descriptor.h"
#include "trireme/launch/host_slots.h"
#include "trireme/launch/launch_order.h"

namespace trireme {

// The words by which ssh starts `program` in `folder` of a host.
std::vector<std::string> ssh_words(const std::string& host, const HostOptions& options,
                                   const std::string& program, const std::string& folder);
// Whether a name of the list of hosts is this machine, which needs no ssh.
bool is_this_machine(const std::string& host);

class HostLauncher {
 public:
  // Starts it. Throws ConfigError if ssh or the program cannot be run.
  HostLauncher(const HostSlots& host, const HostOptions& options, const std::string& program);
  ~HostLauncher();
  HostLauncher& operator=(HostLauncher&&) = delete;

  const std::string& host() const { return host_; }
  int stdout_fd() const { return stdout_.get(); }  // -1 when it was closed
  int stderr_fd() const { return stderr_.get(); }
  // Pass on what came; do not block. What comes before the order was given is kept for why().
  void read_stdout(std::ostream& out) { drain(stdout_, out_, out); }
  void read_stderr(std::ostream& err) { drain(stderr_, err_, err); }

  bool ready() const { return ready_; }  // it waits for its order
  bool ordered() const { return ordered_; }
  std::optional<int> port() const { return port_; }  // where machine 0 listens for other launchers
  int restarts() const { return restarts_; }         // that machine 0's launcher has begun, as it counts them
  void give(const LaunchOrder& order);
  // Tells a launcher with an order that this one lives.
  void give_sign_of_life() const;
  // Asks it to stop; one without an order ends.
  void stop(int signal);
  void kill() const;

  // Whether it has ended; passes on its last output.
  bool reap(std::ostream& out, std::ostream& err);
  bool ended() const { return pid_ < 0; }
  int code() const { return code_; }  // exit code, or 128 + signal
  // Whether ssh itself failed: no connection, or one that was lost.
  bool ssh_failed() const { return over_ssh_ && code_ == 255; }
  // One that ended: what happened and what to do. It names the host.
  std::string why() const;
  // Whether the same may work a little later, without another request.
  bool may_pass() const;

 private:
  void drain(FileDescriptor& descriptor, std::string& pending, std::ostream& to);
  // Of stderr. Returns whether it is for the user.
  bool take_line(std::string line);
  void send(const std::string& line) const;
  bool said(const char* words) const;

  std::string host_, program_, folder_;
  bool over_ssh_ = true;
  pid_t pid_ = -1;
  FileDescriptor stdin_, stdout_, stderr_;
  std::string out_, err_;  // begun lines
  bool ready_ = false, ordered_ = false;
  std::optional<int> port_;
  int restarts_ = 0;
  int code_ = 0;
  std::deque<std::string> said_;  // its last lines on stderr
};

}  // namespace trireme
