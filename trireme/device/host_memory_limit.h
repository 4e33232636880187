// How much memory this process may use on its machine, by every limit that can be read, and what is left of it.
#pragma once

#include <cstdint>
#include <filesystem>

namespace trireme {

// The least of: the machine's memory, the memory limits of this process's control group and those above it
// (v2 memory.max, v1 memory.limit_in_bytes), and RLIMIT_AS and RLIMIT_DATA where they are set. A control
// group that goes over its limit is killed, without an error that could be caught; ranks of one group share
// it.
int64_t host_memory_limit_bytes();

// What this process could take now, beside what it and all others hold: the least of what the machine has
// available (MemAvailable: file pages that the kernel would give back count as free), what each control group
// has left of its limit, and what RLIMIT_AS and RLIMIT_DATA leave. 0 where a limit is passed already.
int64_t host_memory_left_bytes();

// The parts of them that files tell, from another root than "/"; for tests.
int64_t host_memory_limit_bytes_under(const std::filesystem::path& root);
int64_t host_memory_left_bytes_under(const std::filesystem::path& root);

}  // namespace trireme
