// A stream of a GPU for copies beside the computation. On a CPU, where everything happens in the order in
// which it is called, it copies at once and there is nothing to wait for.
//
// Written on libtorch's device-independent interface: the same source serves builds with and without CUDA.
#pragma once

#include <optional>

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

namespace trireme {

class CopyStream {
 public:
  using Mark = std::optional<c10::Event>;  // a point in this stream; none on a CPU

  explicit CopyStream(at::Device device);

  // Copies wait for what the computation has been given so far.
  void wait_for_compute();
  // The computation waits for the copies up to `mark`.
  void compute_waits(const Mark& mark);
  // This thread waits for them.
  static void host_waits(const Mark& mark);

  // to = from, both contiguous, of one dtype and shape. The caller keeps both alive until one of the waits;
  // pinned memory of the host may be dropped earlier, its allocator waits.
  void copy(const at::Tensor& to, const at::Tensor& from);
  Mark mark();  // after the copies so far

 private:
  c10::Stream compute() const;
  at::Device device_;
  std::optional<c10::Stream> stream_;  // none on a CPU
};

}  // namespace trireme
