// Holds a thread back until another one lets it go on: the order of things across threads, without timings.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace trireme::testing {

class Gate {
 public:
  void open() {
    {
      const std::lock_guard lock(mutex_);
      open_ = true;
    }
    opened_.notify_all();
  }
  // True when it was opened; false where nobody did so in ten seconds, which is a deadlock in the code under
  // test.
  bool wait() {
    std::unique_lock lock(mutex_);
    return opened_.wait_for(lock, std::chrono::seconds(10), [this] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool open_ = false;
};

}  // namespace trireme::testing
