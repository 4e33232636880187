#include "trireme/comm/slurm_lists.h"

#include <regex>

#include "trireme/base/error.h"
#include "trireme/base/split.h"

namespace trireme {

std::vector<int> slurm_tasks_per_node(const std::string& text) {
  static const std::regex entry(R"((\d{1,6})(?:\(x(\d{1,6})\))?)");
  std::vector<int> tasks;
  for (const std::string& part : split(text, ',')) {
    std::smatch match;
    if (!std::regex_match(part, match, entry)) {
      throw ConfigError(
          cat("cannot read Slurm's tasks per node '", text, "'; expected a list such as 2(x3),1"));
    }
    tasks.insert(tasks.end(), match[2].matched ? std::stoi(match[2]) : 1, std::stoi(match[1]));
  }
  return tasks;
}

std::string slurm_first_host(const std::string& nodelist) {
  // A prefix, then the end, a comma or a bracket. The bracket's first number is kept with its zeros.
  static const std::regex first(R"(^([^\[\],]+)(?:\[(\d+)[^\]]*\]([^\[\],]*))?(?:,.*)?$)");
  std::smatch match;
  if (!std::regex_match(nodelist, match, first)) {
    throw ConfigError(
        cat("cannot read Slurm's node list '", nodelist, "'; set MASTER_ADDR to rank 0's machine"));
  }
  return match[1].str() + match[2].str() + match[3].str();
}

}  // namespace trireme
