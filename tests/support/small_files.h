// Files of this process may not grow beyond `bytes` while this lives: writing and taking blocks fail as they
// do on a full disk, but for the reason that the system names.
#pragma once

#include <csignal>
#include <sys/resource.h>

#include <gtest/gtest.h>

namespace trireme::testing {

class SmallFiles {
 public:
  explicit SmallFiles(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    EXPECT_EQ(::getrlimit(RLIMIT_FSIZE, &before_), 0);
    rlimit small = before_;
    small.rlim_cur = bytes;
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  }
  ~SmallFiles() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  SmallFiles& operator=(SmallFiles&&) = delete;

 private:
  rlimit before_ = {};
  void (*handler_)(int);
};

}  // namespace trireme::testing
