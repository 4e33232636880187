// A stream of a GPU for copies beside the computation. On a CPU, where everything happens in the order in
// which it is called, it copies at once and there is nothing to wait for.
//
//   wait_for_compute, copy, copy, mark        the copies' stream
//   compute_waits(mark)                       the computation's: what it is given from here on finds them done
//
// The calls return before the copies are done. What they work on stays where it is until then: memory of the device
// until compute_waits, after which it is given out again in the order of the computation; pinned memory of the host
// until its pool was told the mark (device/pinned_pool.h).
#pragma once

#include <functional>
#include <memory>

#include <ATen/ATen.h>

#include "trireme/device/stream_mark.h"

namespace trireme {

class CopyStream {
 public:
  using Mark = std::shared_ptr<const StreamMark>;  // a point in this stream; none on a CPU

  virtual ~CopyStream() = default;
  CopyStream& operator=(CopyStream&&) = delete;
  // Copies wait for what the computation has been given so far.
  virtual void wait_for_compute() = 0;
  // The computation waits for the copies up to `mark`, one of this stream's. Nothing to wait for without one.
  virtual void compute_waits(const Mark& mark) = 0;
  // to = from, both contiguous, of one dtype and shape; one is on the host.
  virtual void copy(const at::Tensor& to, const at::Tensor& from) = 0;
  virtual Mark mark() = 0;  // after the copies so far
  // What `give` gives the device (a collective, that waits for the stream that it is given on) comes behind the copies so
  // far, and not behind the computation. Memory that it allocates is this stream's.
  virtual void behind_copies(const std::function<void()>& give) = 0;

  // This thread waits for the copies up to `mark`.
  static void host_waits(const Mark& mark) {
    if (mark) mark->wait();
  }
};

// Written on libtorch's device-independent interface: the same source serves builds with and without CUDA.
std::unique_ptr<CopyStream> make_copy_stream(at::Device device);

}  // namespace trireme
