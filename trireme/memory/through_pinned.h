// Copies between a GPU and the host on the current stream; this thread waits for them. Pageable memory is
// copied to the GPU through pinned memory, a piece (pinned_piece.h) at a time, in which masters are rounded
// to the dtype of values (kernels/split_master.h). libtorch's own code for both is several times slower.
#pragma once

#include <ATen/ATen.h>

#include "trireme/device/pinned_pool.h"

namespace trireme {

// `tensor` itself if it lies on the host, else a copy in memory of `pinned`.
at::Tensor on_host(const at::Tensor& tensor, PinnedPool* pinned);
// to = from, both contiguous. On the way to a GPU the dtypes may differ; only that needs `pinned`.
void copy_through_pinned(at::Tensor& to, const at::Tensor& from, PinnedPool* pinned);

}  // namespace trireme
