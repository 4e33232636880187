// One rank as a child process: a separate process group, no input, stdout and stderr through pipes. The child
// dies with the launcher.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <sys/types.h>
#include <vector>

#include "trireme/base/file_descriptor.h"
#include "trireme/base/rank_activity.h"
#include "trireme/launch/rank_end.h"

namespace trireme {

struct RankProcess {
  int rank = 0;
  pid_t pid = -1;
  FileDescriptor stdout_fd, stderr_fd;  // to read from, do not block
  std::shared_ptr<ActivityReader> activity;
};

// `environment` is added to this process's environment; an empty value removes the variable. `inherit_fd` (or
// -1) stays open in the child, as does its activity page. Throws ConfigError if the program cannot be run.
RankProcess start_rank(int rank, const std::string& program, const std::vector<std::string>& arguments,
                       std::map<std::string, std::string> environment, int inherit_fd);

// Reads the rank's state from the system and from its activity page.
RankLook look_at(const RankProcess& process);

}  // namespace trireme
