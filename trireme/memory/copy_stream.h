// A GPU stream for copies that run beside the computation. On a CPU each copy is done when its call returns,
// and there is nothing to wait for.
//
//   wait_for_compute, copy, copy, mark        on the copy stream
//   compute_waits(mark)                       on the computation's stream: its later work sees the copies
//
// The calls return before the copies are done. Their memory must stay until then: device memory until
// compute_waits, after which it is reused in the order of the computation; pinned host memory until its pool
// was told the mark (device/pinned_pool.h).
#pragma once

#include <functional>
#include <memory>

#include <ATen/ATen.h>

#include "trireme/device/stream_mark.h"

namespace trireme {

class CopyStream {
 public:
  using Mark = std::shared_ptr<const StreamMark>;  // a point in this stream; null on a CPU

  virtual ~CopyStream() = default;
  CopyStream& operator=(CopyStream&&) = delete;
  // Copies wait for what the computation has been given so far.
  virtual void wait_for_compute() = 0;
  // The computation waits for the copies up to `mark`, a mark of this stream. Does nothing for a null mark.
  virtual void compute_waits(const Mark& mark) = 0;
  // to = from, both contiguous, of one dtype and shape; one is on the host.
  virtual void copy(const at::Tensor& to, const at::Tensor& from) = 0;
  virtual Mark mark() = 0;  // after the copies so far
  // Calls `give`, and runs the device work that it starts (such as a collective, which waits for the current
  // stream) after the copies so far. That work does not wait for the computation. Memory that `give`
  // allocates belongs to this stream.
  virtual void behind_copies(const std::function<void()>& give) = 0;

  // This thread waits for the copies up to `mark`.
  static void host_waits(const Mark& mark) {
    if (mark) mark->wait();
  }
};

// Uses libtorch's device-independent interface: the same source serves builds with and without CUDA.
std::unique_ptr<CopyStream> make_copy_stream(at::Device device);

}  // namespace trireme
