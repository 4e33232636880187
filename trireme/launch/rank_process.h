// One rank as a child process: its own process group, no input, stdout and stderr through pipes; it dies with
// the launcher.
#pragma once

#include <map>
#include <string>
#include <sys/types.h>
#include <vector>

namespace trireme {

struct RankProcess {
  int rank = 0;
  pid_t pid = -1;
  int stdout_fd = -1;  // to read from, does not block
  int stderr_fd = -1;
};

// `environment` is added to this process's own; an empty value takes the variable away. `inherit_fd` (or -1)
// stays open in the child. Throws ConfigError when the program cannot be run.
RankProcess start_rank(int rank, const std::string& program, const std::vector<std::string>& arguments,
                       const std::map<std::string, std::string>& environment, int inherit_fd);

// How a rank ended.
struct RankEnd {
  int rank = 0;
  pid_t pid = -1;
  int code = 0;              // of exit, when signal is 0
  int signal = 0;            // that killed it
  bool ended_by_us = false;  // the launcher had told it to end
  bool failed() const { return code != 0 || signal != 0; }
  int exit_code() const { return signal != 0 ? 128 + signal : code; }
};

}  // namespace trireme
