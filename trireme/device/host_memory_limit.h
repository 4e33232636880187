// How much memory this process may use on its machine, by every limit that can be read.
#pragma once

#include <cstdint>
#include <filesystem>

namespace trireme {

// The least of: the machine's memory, the memory limits of this process's control group and those above it
// (v2 memory.max, v1 memory.limit_in_bytes), and RLIMIT_AS and RLIMIT_DATA where they are set. A control
// group that goes over its limit is killed, without an error that could be caught; ranks of one group share
// it.
int64_t host_memory_limit_bytes();

// The part of it that files tell, from another root than "/"; for tests.
int64_t host_memory_limit_bytes_under(const std::filesystem::path& root);

}  // namespace trireme
