// The time that a collective takes from the computation which waits for it. On the CPU the host's clock tells it. To a
// device the host only gives work, so there two marks on the stream that computes tell it: the second one lies behind the
// wait for what the collective brings.
#pragma once

#include <optional>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/Event.h>

namespace trireme {

// From one mark on a stream to another.
struct StreamSpan {
  c10::Event begin, end;
};

// What was measured of one collective; seconds of the spans are known when the device has come to their ends.
struct CallTime {
  double host_seconds = 0;
  std::vector<StreamSpan> spans;
};

// A watch over one collective, whose tensors lie on `device`. It runs from the start; between pause and resume the time is
// the caller's own.
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
