#include "trireme/memory/through_pinned.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/kernels/split_master.h"
#include "trireme/memory/pinned_piece.h"

namespace trireme {
namespace {

// Units differ in size, and the pool pins anew for another size: all go through pieces of one.
void upload(const at::Tensor& to, const at::Tensor& from, PinnedPool& pinned) {
  const int64_t elements = from.numel();
  if (elements == 0) return;
  const int64_t piece = std::min(elements, kPinnedPiece_bytes / static_cast<int64_t>(to.element_size()));
  const at::Tensor block = pinned.take(piece, to.scalar_type());
  const at::Tensor to_flat = to.view(-1), from_flat = from.view(-1);
  for (int64_t done = 0; done < elements; done += piece) {
    const int64_t count = std::min(piece, elements - done);
    const at::Tensor here = block.narrow(0, 0, count);
    round_masters(from_flat.narrow(0, done, count), here);
    to_flat.narrow(0, done, count).copy_(here);  // waits, so that the block is free for the next piece
  }
}

}  // namespace

at::Tensor on_host(const at::Tensor& tensor, PinnedPool* pinned) {
  if (tensor.is_cpu()) return tensor;
  return pinned->take(tensor.numel(), tensor.scalar_type()).copy_(tensor);
}

void copy_through_pinned(at::Tensor& to, const at::Tensor& from, PinnedPool* pinned) {
  if (to.is_cpu() || to.device() == from.device()) {
    TRIREME_ASSERT(to.scalar_type() == from.scalar_type(), "got ", from.scalar_type(), " for ",
                   to.scalar_type());
    to.copy_(from);
  } else {
    upload(to, from, *pinned);
  }
}

}  // namespace trireme
