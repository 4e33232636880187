// A point in the work queued on a device, such as the end of a copy. Memory that this work uses must outlive
// it.
#pragma once

namespace trireme {

// Any thread may call it.
class StreamMark {
 public:
  virtual ~StreamMark() = default;
  StreamMark& operator=(StreamMark&&) = delete;
  virtual bool reached() const = 0;
  // This thread waits until the mark is reached.
  virtual void wait() const = 0;
};

}  // namespace trireme
