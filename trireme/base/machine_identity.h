// Which machine this is, and which of its processes is which: process numbers come again, with another begin.
#pragma once

#include <cstdint>
#include <string>

namespace trireme {

// "localhost" where the machine has none.
std::string host_name();

// Of the machine since it was started last; empty where the system does not say.
std::string boot_id();

// When a process began, in the kernel's ticks since the machine's start; 0 when it is not there.
int64_t start_ticks(int64_t process);

}  // namespace trireme
