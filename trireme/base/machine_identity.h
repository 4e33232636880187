// Identifies this machine and its processes. The system reuses process numbers; the start time tells such
// processes apart.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

namespace trireme {

// "localhost" if the machine has no name.
std::string host_name();

// " (read by rank 3 on node7)", behind what one of many ranks found in a file; empty: of one rank.
std::string read_by_text(int rank, int ranks);

// Identifies the current boot of the machine; empty if the system does not tell.
std::string boot_id();

// Equal for processes of one machine that share its namespaces of these kinds ("net": they reach each other
// over the loopback interface; "pid": a process number means the same process), and for no others. Empty if
// the system does not tell.
std::string machine_with_namespaces(std::initializer_list<const char*> kinds);

// The text of /proc/PROCESS/stat after the process name: the state ("R", "S", "T", ...), then numbers. Empty
// if there is no such process.
std::string state_and_numbers(int64_t process);

// Start time of a process, in kernel ticks since boot; 0 if there is no such process.
int64_t start_ticks(int64_t process);

}  // namespace trireme
