// Waits for news of a file or socket, however many signals come meanwhile.
#pragma once

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <poll.h>

namespace trireme {

// Above 0: there is news of `events`; 0: the deadline has passed; below 0: errno tells why.
inline int poll_until(int descriptor, int16_t events, std::chrono::steady_clock::time_point deadline) {
  using std::chrono::milliseconds;
  constexpr milliseconds kMost = std::chrono::hours(1);  // poll() takes an int
  for (;;) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd waiting{descriptor, events, 0};
    const int ready = ::poll(&waiting, 1, static_cast<int>(std::clamp(left, milliseconds(0), kMost).count()));
    if (ready > 0 || (ready < 0 && errno != EINTR)) return ready;
    if (left.count() <= 0) return 0;
  }
}

}  // namespace trireme
