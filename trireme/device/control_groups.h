// The memory of the control groups that this process belongs to (cgroup v1 and v2), as files of the kernel tell it:
//
//   /proc/self/cgroup -> the group's folder and those above it -> limit, use, and the file pages among what is used
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace trireme {

struct ControlGroupMemory {
  int64_t limit_bytes = 0;  // v2 memory.max, v1 memory.limit_in_bytes
  // Of all processes of the group, less its file pages: those the kernel takes back before it ends a process.
  int64_t held_bytes = 0;
};

// The process's own group and those above it, as far as they have a limit. Inside a container the mount shows the
// process's own group as its top, though /proc names the path that the host sees. `root` stands for "/".
std::vector<ControlGroupMemory> limited_control_groups(const std::filesystem::path& root);

}  // namespace trireme
