// Pinned memory of the host, for copies from and to a GPU beside its computation.
//
//   take(elements, dtype) -> [elements], on a page of its own -> dropped, by whichever thread
//        ^                                                          |
//        +---- the block serves the next request of its size -------+
//
// Pinning is slow, and what is pinned is lost to everyone else: blocks are kept for the next request, and no size is
// rounded up but to whole pages. The layers of a model ask for the same few sizes in every step, so a block serves its
// own size alone. What the pool keeps pinned never exceeds the most that was in use at once; what has lain unused
// longest makes way for another size.
//
// A GPU works later than the calls that give it work: memory that a copy still reads or writes may be dropped, for the
// pool waits for the copy's mark before it gives the block out again or unpins it.
//
// Host memory comes from libtorch's CPU allocator: with ours (cpu_caching_allocator.h) it is bounded by the limit of
// this process and counted, as long as it is pinned, in the category of the thread that took it last.
#pragma once

#include <cstdint>
#include <memory>

#include <ATen/ATen.h>

#include "trireme/device/host_pinning.h"
#include "trireme/device/stream_mark.h"

namespace trireme {

// Thread-safe. Tensors may outlive it.
class PinnedPool {
 public:
  explicit PinnedPool(HostPinning pinning);

  // Uninitialised. Waits where the only block of that size is still being copied. ConfigError when there is no memory
  // for it or it cannot be pinned, after unused blocks were given up for it: category, bytes asked, what would help.
  at::Tensor take(int64_t elements, at::ScalarType dtype = at::kByte);

  // Work up to `mark` reads or writes `tensor`, a tensor of take() of any pool or a view of one, which this thread
  // holds alone. No mark: nothing to wait for.
  static void in_use_until(const at::Tensor& tensor, std::shared_ptr<const StreamMark> mark);

  int64_t pinned_bytes() const;  // in whole pages, in use and kept

 private:
  class Blocks;
  std::shared_ptr<Blocks> blocks_;
};

}  // namespace trireme
