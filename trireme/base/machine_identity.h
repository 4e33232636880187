// Which machine this is, and which of its processes is which: process numbers come again, with another begin.
#pragma once

#include <cstdint>
#include <string>

namespace trireme {

// "localhost" where the machine has none.
std::string host_name();

// Of the machine since it was started last; empty where the system does not say.
std::string boot_id();

// What /proc/PROCESS/stat says behind the process's name: its state ("R", "S", "T", ...), then the numbers. Empty when it is
// not there.
std::string state_and_numbers(int64_t process);

// When a process began, in the kernel's ticks since the machine's start; 0 when it is not there.
int64_t start_ticks(int64_t process);

}  // namespace trireme
