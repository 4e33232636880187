// One rank as a child process: its own process group, no input, stdout and stderr through pipes; it dies with
// the launcher.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <sys/types.h>
#include <vector>

#include "trireme/base/rank_activity.h"
#include "trireme/launch/rank_end.h"

namespace trireme {

struct RankProcess {
  int rank = 0;
  pid_t pid = -1;
  int stdout_fd = -1;  // to read from, does not block
  int stderr_fd = -1;
  std::shared_ptr<ActivityReader> activity;
};

// `environment` is added to this process's own; an empty value takes the variable away. `inherit_fd` (or -1)
// stays open in the child, as does the page by which it tells what it is doing. Throws ConfigError when the program
// cannot be run.
RankProcess start_rank(int rank, const std::string& program, const std::vector<std::string>& arguments,
                       std::map<std::string, std::string> environment, int inherit_fd);

// Reads what the system and the rank itself say of it.
RankLook look_at(const RankProcess& process);

}  // namespace trireme
