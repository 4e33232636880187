#include "trireme/device/host_memory_limit.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <sys/resource.h>
#include <unistd.h>

#include "trireme/device/control_groups.h"

namespace trireme {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

// `field` as /proc/meminfo has it: "MemTotal:".
int64_t machine_bytes(const std::filesystem::path& root, const std::string& field) {
  std::ifstream in(root / "proc/meminfo");
  for (std::string line; std::getline(in, line);)
    if (line.rfind(field, 0) == 0) {
      int64_t kib = 0;
      std::istringstream(line.substr(field.size())) >> kib;
      if (kib > 0) return kib * 1024;
    }
  return kNoLimit;
}

int64_t resource_bytes(decltype(RLIMIT_AS) resource) {
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
      limit.rlim_cur > static_cast<rlim_t>(kNoLimit))
    return kNoLimit;
  return static_cast<int64_t>(limit.rlim_cur);
}

// The bytes that resource limits still leave to this process.
int64_t resource_bytes_left() {
  std::ifstream in("/proc/self/statm");
  int64_t mapped = 0, resident = 0, shared = 0, code = 0, libraries = 0, data = 0;
  in >> mapped >> resident >> shared >> code >> libraries >> data;
  const int64_t page = sysconf(_SC_PAGESIZE);
  const auto left = [page](decltype(RLIMIT_AS) resource, int64_t used_pages) {
    const int64_t limit = resource_bytes(resource);
    return limit == kNoLimit ? kNoLimit : std::max<int64_t>(0, limit - used_pages * page);
  };
  return std::min(left(RLIMIT_AS, mapped), left(RLIMIT_DATA, data));
}

}  // namespace

int64_t host_memory_limit_bytes_under(const std::filesystem::path& root) {
  int64_t least = machine_bytes(root, "MemTotal:");
  for (const ControlGroupMemory& group : limited_control_groups(root))
    least = std::min(least, group.limit_bytes);
  return least;
}

int64_t host_memory_limit_bytes() {
  return std::min(
      {host_memory_limit_bytes_under("/"), resource_bytes(RLIMIT_AS), resource_bytes(RLIMIT_DATA)});
}

int64_t host_memory_left_bytes_under(const std::filesystem::path& root) {
  int64_t least = std::min(machine_bytes(root, "MemTotal:"), machine_bytes(root, "MemAvailable:"));
  for (const ControlGroupMemory& group : limited_control_groups(root))
    least = std::min(least, std::max<int64_t>(0, group.limit_bytes - group.held_bytes));
  return least;
}

int64_t host_memory_left_bytes() {
  return std::min(host_memory_left_bytes_under("/"), resource_bytes_left());
}

}  // namespace trireme
