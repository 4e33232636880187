// All bytes to an open file or pipe, however many calls the system takes for them.
#pragma once

#include <cerrno>
#include <cstddef>
#include <unistd.h>

namespace trireme {

struct Written {
  size_t bytes = 0;
  int error = 0;  // an errno: why it is not all
};

inline Written write_all(int descriptor, const void* data, size_t bytes) {
  Written written;
  while (written.bytes < bytes) {
    const ssize_t count =
        ::write(descriptor, static_cast<const std::byte*>(data) + written.bytes, bytes - written.bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      written.error = count < 0 ? errno : ENOSPC;
      break;
    }
    written.bytes += static_cast<size_t>(count);
  }
  return written;
}

}  // namespace trireme
