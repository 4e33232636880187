// Measures the time that a collective costs the computation which waits for it. On the CPU the host's clock
// measures it. On a device, to which the host only queues work, two events on the compute stream measure it:
// the second event comes after the wait for the collective's result.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/Event.h>

namespace trireme {

// The time between two events on a stream.
struct StreamSpan {
  c10::Event begin, end;
};

// The measurements of one collective. The seconds of a span are known once the device has reached its end.
struct CallTime {
  double host_seconds = 0;
  std::vector<StreamSpan> spans;
};

// The seconds of many calls.
class CallSeconds {
 public:
  void add(CallTime time);
  double total() const;  // waits for the device on which they ran

 private:
  // Adds the spans that the device has passed, or all spans.
  void add_passed(bool all) const;
  mutable double seconds_ = 0;
  mutable std::deque<StreamSpan> spans_;  // seconds not known yet
};

// The host waits for all that it has queued on the device's current stream; on a CPU that is nothing.
void wait_for_stream(at::Device device);

// A stopwatch for one collective with tensors on `device`. It starts running, and does not count the time
// between pause() and resume().
class CallWatch {
 public:
  explicit CallWatch(at::Device device) : device_(device) { resume(); }
  void resume();
  void pause();
  CallTime take() { return std::move(time_); }

 private:
  at::Device device_;
  double begin_seconds_ = 0;
  std::optional<c10::Event> begin_;
  CallTime time_;
};

}  // namespace trireme
