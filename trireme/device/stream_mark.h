// A point in the work that a device was given: the end of a copy, say. What memory serves may have to outlast it.
#pragma once

namespace trireme {

// Any thread may ask.
class StreamMark {
 public:
  virtual ~StreamMark() = default;
  StreamMark& operator=(StreamMark&&) = delete;
  virtual bool reached() const = 0;
  // This thread waits until it is.
  virtual void wait() const = 0;
};

}  // namespace trireme
