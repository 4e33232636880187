// Reads the memory limits and memory use of this process's control groups (cgroup v1 and v2) from kernel
// files:
//
//   /proc/self/cgroup -> folders of the group and of its ancestors -> limit, use, file pages in use
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace trireme {

struct ControlGroupMemory {
  int64_t limit_bytes = 0;  // v2 memory.max, v1 memory.limit_in_bytes
  // Use of all processes of the group, without its file pages: the kernel reclaims those before it kills a
  // process.
  int64_t held_bytes = 0;
};

// This process's group and its ancestors, if they have a limit. Inside a container the top of the mount is
// this process's group, though /proc names the path that the host sees. `root` replaces "/".
std::vector<ControlGroupMemory> limited_control_groups(const std::filesystem::path& root);

}  // namespace trireme
