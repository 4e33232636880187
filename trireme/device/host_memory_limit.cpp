// Reads limits and use from kernel files. Of control groups (cgroup v1 and v2):
//
//   /proc/self/cgroup -> folders of the group and of its ancestors -> limit, use, file pages in use
#include "trireme/device/host_memory_limit.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <sys/resource.h>
#include <unistd.h>
#include <vector>

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

struct ControlGroupMemory {
  int64_t limit_bytes = 0;  // v2 memory.max, v1 memory.limit_in_bytes
  // Use of all processes of the group, without its file pages: the kernel reclaims those before it kills a
  // process.
  int64_t held_bytes = 0;
};

// The file names of one cgroup version, and the names of the two kinds of file pages in its statistics.
struct Names {
  const char* limit;
  const char* used;
  const char* inactive_file;
  const char* active_file;
};
constexpr Names kVersion2{"memory.max", "memory.current", "inactive_file", "active_file"};
constexpr Names kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file",
                          "total_active_file"};

// The number in `file`; nullopt if the file is missing or holds "max".
std::optional<int64_t> number_in(const std::filesystem::path& file) {
  std::ifstream in(file);
  int64_t number = 0;
  if (in >> number && number > 0) return number;
  return std::nullopt;
}

int64_t file_pages_bytes(const std::filesystem::path& statistics, const Names& names) {
  std::ifstream in(statistics);
  int64_t sum = 0, bytes = 0;
  for (std::string name; in >> name >> bytes;)
    if (name == names.inactive_file || name == names.active_file) sum += bytes;
  return sum;
}

void add_if_limited(const std::filesystem::path& folder, const Names& names,
                    std::vector<ControlGroupMemory>& groups) {
  // A missing file means no limit. v1 writes a number near 2^63 for no limit, which exceeds any real limit.
  const auto limit = number_in(folder / names.limit);
  if (!limit) return;
  const int64_t used = number_in(folder / names.used).value_or(0);
  groups.push_back({*limit, std::max<int64_t>(0, used - file_pages_bytes(folder / "memory.stat", names))});
}

void add_groups(const std::filesystem::path& mount, const std::string& group, const Names& names,
                std::vector<ControlGroupMemory>& groups) {
  add_if_limited(mount, names, groups);
  std::filesystem::path folder = mount;
  for (const auto& part : std::filesystem::path(group).relative_path()) {
    folder /= part;
    add_if_limited(folder, names, groups);
  }
}

// This process's group and its ancestors, if they have a limit. Inside a container the top of the mount is
// this process's group, though /proc names the path that the host sees. `root` replaces "/".
std::vector<ControlGroupMemory> limited_control_groups(const std::filesystem::path& root) {
  std::vector<ControlGroupMemory> groups;
  std::ifstream in(root / "proc/self/cgroup");
  // Lines are "hierarchy:controllers:path"; v2 has hierarchy 0 and no controllers.
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (controllers.empty())
      add_groups(root / "sys/fs/cgroup", group, kVersion2, groups);
    else if (("," + controllers + ",").find(",memory,") != std::string::npos)
      add_groups(root / "sys/fs/cgroup/memory", group, kVersion1, groups);
  }
  return groups;
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

int64_t host_memory_of_rank_bytes(int64_t given_bytes, int ranks) {
  return (given_bytes > 0 ? given_bytes : host_memory_limit_bytes()) / std::max(1, ranks);
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
