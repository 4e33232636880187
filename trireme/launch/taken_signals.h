// The signals that the launcher takes over: stop signals, and SIGCHLD of children that ended.
#pragma once

#include "trireme/base/file_descriptor.h"
#include "trireme/base/stop_request.h"

namespace trireme {

// Blocks the signals permanently; while this object lives they can be read from `descriptor`. Signals that
// were ignored before stay ignored. The signals are never unblocked: launching is the last task of a process,
// and a late signal must not change its exit code.
class TakenSignals {
 public:
  TakenSignals();
  ~TakenSignals();
  TakenSignals& operator=(TakenSignals&&) = delete;
  int descriptor() const { return descriptor_.get(); }

  struct StopNews {
    int signal = 0;  // 0: none
    StopRequest request = StopRequest::repeat;
  };
  // The stop request since the last call: the first or, if there is one, the second. Does not block.
  StopNews next_request();
  // The first stop signal that came, 0 when none did.
  int stop_signal() const { return stop_signal_; }
  // Waits `seconds`. Returns true, early, if asked to stop.
  bool wait(double seconds);

 private:
  StopRequests requests_;
  int stop_signal_ = 0;
  FileDescriptor descriptor_;
};

}  // namespace trireme
