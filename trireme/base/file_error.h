// What a failed system call on a file means for the run: the file is wrong, or its machine is away for a while.
#pragma once

#include <string>

namespace trireme {

// "WHAT: the system's words for `error` (an errno)AFTER". Throws SystemFault where `error` says that a file system
// over the network, or its server, is not reachable or was begun anew, else DataError. EIO is a DataError: a
// disk's bad sector stays bad. Where there is no room, what to do stands before AFTER.
[[noreturn]] void throw_file_error(const std::string& what, int error, const std::string& after = "");

}  // namespace trireme
