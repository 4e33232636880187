// Time that only goes forward, for durations.
#pragma once

#include <chrono>

namespace trireme {

// Seconds since a moment of its own: only differences mean something.
inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// For what is worth a look now and then: due() is true at first, and then once in `seconds`. No system call.
class NowAndThen {
 public:
  explicit NowAndThen(double seconds) : seconds_(seconds) {}
  bool due() {
    const double now = now_seconds();
    if (looked_ && now - last_ < seconds_) return false;
    looked_ = true;
    last_ = now;
    return true;
  }

 private:
  double seconds_;
  double last_ = 0;
  bool looked_ = false;
};

}  // namespace trireme
