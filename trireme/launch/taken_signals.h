// The signals that the launcher takes over: those that ask to stop, and those of children that ended.
#pragma once

#include "trireme/base/stop_request.h"

namespace trireme {

// Blocks the signals for good; while it lives they can be read from `descriptor`. Those that were ignored before stay
// ignored. They are not let through again: launching is the last that a process does, and a signal that comes late must
// not change the code that it ends with.
class TakenSignals {
 public:
  TakenSignals();
  ~TakenSignals();
  TakenSignals& operator=(TakenSignals&&) = delete;
  int descriptor() const { return descriptor_; }

  struct StopNews {
    int signal = 0;  // 0: none
    StopRequest request = StopRequest::repeat;
  };
  // What stop signals came since the last call: the first request or, where there is one, the second. Does not block.
  StopNews next_request();
  // The first stop signal that came, 0 when none did.
  int stop_signal() const { return stop_signal_; }
  // Waits; returns early, with true, when asked to stop.
  bool wait(double seconds);

 private:
  StopRequests requests_;
  int stop_signal_ = 0;
  int descriptor_ = -1;
};

}  // namespace trireme
