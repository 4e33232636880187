#include "trireme/device/host_memory_limit.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <sys/resource.h>

namespace trireme {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

int64_t machine_bytes(const std::filesystem::path& root) {
  std::ifstream in(root / "proc/meminfo");
  for (std::string line; std::getline(in, line);)
    if (line.rfind("MemTotal:", 0) == 0) {
      int64_t kib = 0;
      std::istringstream(line.substr(9)) >> kib;
      if (kib > 0) return kib * 1024;
    }
  return kNoLimit;
}

// A file that holds a number, or "max"; v1 writes a number near 2^63 for no limit.
int64_t limit_in(const std::filesystem::path& file) {
  std::ifstream in(file);
  int64_t bytes = 0;
  return in >> bytes && bytes > 0 ? bytes : kNoLimit;
}

// The least limit of a group and of those above it. `mount` shows the process's own group as its top inside
// a container, though /proc names the path that the host sees: what is not there is no limit.
int64_t group_bytes(const std::filesystem::path& mount, const std::string& group, const char* name) {
  int64_t least = limit_in(mount / name);
  std::filesystem::path at = mount;
  for (const auto& part : std::filesystem::path(group).relative_path()) {
    at /= part;
    least = std::min(least, limit_in(at / name));
  }
  return least;
}

int64_t control_group_bytes(const std::filesystem::path& root) {
  int64_t least = kNoLimit;
  std::ifstream in(root / "proc/self/cgroup");
  // Lines are "hierarchy:controllers:path"; v2 has hierarchy 0 and no controllers.
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (controllers.empty())
      least = std::min(least, group_bytes(root / "sys/fs/cgroup", group, "memory.max"));
    else if (("," + controllers + ",").find(",memory,") != std::string::npos)
      least = std::min(least, group_bytes(root / "sys/fs/cgroup/memory", group, "memory.limit_in_bytes"));
  }
  return least;
}

int64_t resource_bytes(decltype(RLIMIT_AS) resource) {
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
      limit.rlim_cur > static_cast<rlim_t>(kNoLimit))
    return kNoLimit;
  return static_cast<int64_t>(limit.rlim_cur);
}

}  // namespace

int64_t host_memory_limit_bytes_under(const std::filesystem::path& root) {
  return std::min(machine_bytes(root), control_group_bytes(root));
}

int64_t host_memory_limit_bytes() {
  return std::min(
      {host_memory_limit_bytes_under("/"), resource_bytes(RLIMIT_AS), resource_bytes(RLIMIT_DATA)});
}

}  // namespace trireme
