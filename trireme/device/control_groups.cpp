#include "trireme/device/control_groups.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>

namespace trireme {
namespace {

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

}  // namespace

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

}  // namespace trireme
