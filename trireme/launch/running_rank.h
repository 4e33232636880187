// One rank while it runs: its two output streams, their destinations, and its activity.
#pragma once

#include <filesystem>
#include <optional>
#include <ostream>

#include "trireme/launch/launch.h"
#include "trireme/launch/rank_log.h"
#include "trireme/launch/rank_output.h"
#include "trireme/launch/rank_process.h"

namespace trireme {

// The destinations of the ranks' two streams.
struct RankStreams {
  OutputSink& out;
  OutputSink& err;
  std::ostream& launcher;  // the launcher's messages
  RankStdout rank_stdout = RankStdout::prefixed;
  std::filesystem::path logs;  // folder of this attempt; empty: none
};

class RunningRank {
 public:
  RunningRank(RankProcess process, const RankStreams& streams);

  bool running() const { return running_; }
  int stdout_fd() const { return process_.stdout_fd.get(); }  // -1 when it was closed
  int stderr_fd() const { return process_.stderr_fd.get(); }
  // Reads what the rank has written; does not wait for more.
  void read_stdout() { drain(process_.stdout_fd, out_, out_log_); }
  void read_stderr() { drain(process_.stderr_fd, err_, err_log_); }
  void show_pending();
  // Records how long the rank has waited for other ranks.
  void note_wait();
  bool is_stopped() const { return look_at(process_).stopped; }
  // Asks the rank to end, once.
  void ask_to_end();
  void kill();
  // How the rank ended; nullopt while it runs.
  std::optional<RankEnd> reap();

 private:
  void drain(FileDescriptor& descriptor, RankOutput& output, RankLog& log);

  RankProcess process_;
  std::ostream& launcher_;
  RankOutput out_, err_;
  RankLog out_log_, err_log_;
  RankLook look_;  // the last
  double waited_seconds_ = 0;
  bool running_ = true, asked_ = false, killed_ = false;
};

}  // namespace trireme
