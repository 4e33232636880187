// A pipe whose ends are closed on exec, so that no child holds another's pipe open.
#pragma once

#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <string_view>
#include <unistd.h>

#include "trireme/base/error.h"
#include "trireme/base/file_descriptor.h"

namespace trireme {

struct Pipe {
  FileDescriptor read, write;
};

// Throws ConfigError.
inline Pipe make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0)
    throw ConfigError(cat("cannot make a pipe: ", std::strerror(errno)));
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

// Gives `take` what a child wrote, without waiting, and closes the descriptor at its end. Reads no more than
// 256 KiB: a child that writes without end must not keep the launcher from its other duties.
template <typename Take>
void read_what_came(FileDescriptor& descriptor, const Take& take) {
  std::array<char, 16384> buffer{};
  for (int round = 0; round < 16 && descriptor.is_open(); ++round) {
    const ssize_t got = ::read(descriptor.get(), buffer.data(), buffer.size());
    if (got > 0) {
      take(std::string_view(buffer.data(), static_cast<size_t>(got)));
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
      descriptor.close();
    } else if (errno == EAGAIN) {
      return;
    }
  }
}

}  // namespace trireme
