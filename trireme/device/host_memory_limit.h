// How much host memory this process may use under all readable limits, and how much of it is left.
#pragma once

#include <cstdint>
#include <filesystem>

namespace trireme {

// The least of: the machine's memory, the memory limits of this process's control group and those above it
// (v2 memory.max, v1 memory.limit_in_bytes), and RLIMIT_AS and RLIMIT_DATA where they are set. The kernel
// kills a control group that exceeds its limit, without an error that could be caught. Ranks of one group
// share its limit.
int64_t host_memory_limit_bytes();

// What each of `ranks` ranks of this machine may hold: its share of `given_bytes` (--host_memory_limit), or
// with 0 of host_memory_limit_bytes().
int64_t host_memory_of_rank_bytes(int64_t given_bytes, int ranks);

// The bytes that this process could still allocate: the least of the machine's available memory
// (MemAvailable, which counts reclaimable file pages as free), the rest of each control group's limit, and
// the rest of RLIMIT_AS and RLIMIT_DATA. 0 if a limit is already exceeded.
int64_t host_memory_left_bytes();

// The same without RLIMIT_AS and RLIMIT_DATA, from files under `root` instead of "/"; for tests.
int64_t host_memory_limit_bytes_under(const std::filesystem::path& root);
int64_t host_memory_left_bytes_under(const std::filesystem::path& root);

}  // namespace trireme
