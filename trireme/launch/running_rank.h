// One rank while it runs: the two streams that come from it, where they go, and what it is doing.
#pragma once

#include <filesystem>
#include <optional>
#include <ostream>

#include "trireme/launch/launch.h"
#include "trireme/launch/rank_log.h"
#include "trireme/launch/rank_output.h"
#include "trireme/launch/rank_process.h"

namespace trireme {

// Where the ranks' two streams end up.
struct RankStreams {
  OutputSink& out;
  OutputSink& err;
  std::ostream& launcher;  // what the launcher itself says
  RankStdout rank_stdout = RankStdout::prefixed;
  std::filesystem::path logs;  // folder of this attempt; empty: none
};

class RunningRank {
 public:
  RunningRank(const RankProcess& process, const RankStreams& streams);

  bool running() const { return running_; }
  int stdout_fd() const { return process_.stdout_fd; }  // -1 when it was closed
  int stderr_fd() const { return process_.stderr_fd; }
  // Takes what it wrote, does not wait for more.
  void read_stdout() { drain(process_.stdout_fd, out_, out_log_); }
  void read_stderr() { drain(process_.stderr_fd, err_, err_log_); }
  void show_pending();
  // Remembers how long it has waited for other ranks.
  void note_wait();
  // Looks at it; asks it to end, once.
  void look() { look_ = look_at(process_); }
  bool is_stopped() const { return look_at(process_).stopped; }
  void ask_to_end();
  void kill();
  // How it ended, once it has.
  std::optional<RankEnd> reap();

 private:
  void drain(int& descriptor, RankOutput& output, RankLog& log);

  RankProcess process_;
  std::ostream& launcher_;
  RankOutput out_, err_;
  RankLog out_log_, err_log_;
  RankLook look_;
  double waited_seconds_ = 0;
  bool running_ = true, asked_ = false, killed_ = false;
};

}  // namespace trireme
