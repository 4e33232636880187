// Pinned host memory, for copies to and from a GPU while it computes.
//
//   take(elements, dtype) -> [elements], page-aligned -> dropped, by any thread
//        ^                                               |
//        +---- it serves the next request of its size ---+
//
// Pinning is slow, so the pool keeps blocks for later requests. Nobody else can use pinned memory, so sizes
// are rounded up to whole pages only. The layers of a model request the same few sizes in every step, so a
// block serves only requests of its size. The pinned bytes never exceed the peak in use; the pool releases
// the block unused for longest to make room for another size.
//
// A GPU works after the calls that give it work have returned. A caller may drop memory that a copy still
// reads or writes: the pool waits for the copy's mark before it reuses or unpins the block.
//
// Host memory comes from libtorch's CPU allocator. With ours (cpu_caching_allocator.h), it is bounded by the
// limit of this process and, while pinned, counted in the category of the thread that took it last.
#pragma once

#include <cstdint>
#include <memory>

#include <ATen/ATen.h>

#include "trireme/device/host_pinning.h"
#include "trireme/device/stream_mark.h"

namespace trireme {

// Thread-safe. Tensors may outlive the pool.
class PinnedPool {
 public:
  explicit PinnedPool(HostPinning pinning);

  // Returns uninitialised memory. Waits if a copy still uses the only block of that size. If memory is
  // missing or cannot be pinned, even after unused blocks are released, throws a ConfigError with the
  // category, the bytes requested and the options that would help.
  at::Tensor take(int64_t elements, at::ScalarType dtype = at::kByte);

  // Device work up to `mark` reads or writes `tensor`, which is a result of take() of any pool or a view of
  // one and which only this thread holds. No mark: nothing to wait for.
  static void in_use_until(const at::Tensor& tensor, std::shared_ptr<const StreamMark> mark);

  int64_t pinned_bytes() const;  // in whole pages, in use and kept

 private:
  class Blocks;
  std::shared_ptr<Blocks> blocks_;
};

}  // namespace trireme
