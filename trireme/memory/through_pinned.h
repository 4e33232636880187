// Copies between a GPU and the host on the current stream, which this thread waits for. What lies in pageable memory goes by
// way of pinned memory, values of another dtype are converted where they come from: libtorch's own ways for both are several
// times slower.
#pragma once

#include <ATen/ATen.h>

#include "trireme/device/pinned_pool.h"

namespace trireme {

// `tensor` on the host: itself where it lies there, else a copy in memory of `pinned`.
at::Tensor on_host(const at::Tensor& tensor, PinnedPool* pinned);
// to = from, both contiguous. `pinned` is needed from the host to a GPU alone.
void copy_through_pinned(at::Tensor& to, const at::Tensor& from, PinnedPool* pinned);

}  // namespace trireme
