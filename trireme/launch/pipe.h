// A pipe whose ends are closed on exec, so that no child holds another's pipe open.
#pragma once

#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
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

}  // namespace trireme
