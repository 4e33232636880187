// A monotonic clock, for durations.
#pragma once

#include <chrono>
#include <limits>

namespace trireme {

// Seconds since an arbitrary start: use only the difference of two results.
inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Limits how often a check runs: due() is true at the first call, then at most once every `seconds`. No
// system call.
class NowAndThen {
 public:
  explicit NowAndThen(double seconds) : seconds_(seconds) {}
  bool due() {
    const double now = now_seconds();
    if (now - last_ < seconds_) return false;
    last_ = now;
    return true;
  }

 private:
  double seconds_;
  double last_ = -std::numeric_limits<double>::infinity();  // when it was due
};

}  // namespace trireme
