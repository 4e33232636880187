// An open file, folder or socket that is closed when its owner goes.
#pragma once

#include <cerrno>
#include <sys/resource.h>
#include <unistd.h>
#include <utility>

namespace trireme {

class FileDescriptor {
 public:
  // Owns `descriptor`; below 0, none.
  explicit FileDescriptor(int descriptor = -1) : value_(descriptor) {}
  ~FileDescriptor() { close(); }
  FileDescriptor(FileDescriptor&& other) noexcept : value_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }

  int get() const { return value_; }
  bool is_open() const { return value_ >= 0; }
  // The caller becomes the owner.
  int release() { return std::exchange(value_, -1); }
  // Keeps errno, which tells why its owner gives up.
  void close() {
    const int reason = errno;
    if (is_open()) ::close(release());
    errno = reason;
  }

 private:
  int value_;
};

// The usual limit is 1024, too little for what has connections to all ranks or machines.
inline void raise_limit_of_open_files() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace trireme
