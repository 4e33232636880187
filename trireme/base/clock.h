// Time that only goes forward, for durations.
#pragma once

#include <chrono>

namespace trireme {

// Seconds since a moment of its own: only differences mean something.
inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace trireme
