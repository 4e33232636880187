#include "trireme/memory/through_pinned.h"

namespace trireme {

at::Tensor on_host(const at::Tensor& tensor, PinnedPool* pinned) {
  if (tensor.is_cpu()) return tensor;
  return pinned->take(tensor.numel(), tensor.scalar_type()).copy_(tensor);
}

void copy_through_pinned(at::Tensor& to, const at::Tensor& from, PinnedPool* pinned) {
  if (to.device() == from.device()) {
    to.copy_(from);
  } else if (to.is_cpu()) {
    to.copy_(from.to(to.scalar_type()));
  } else {
    to.copy_(pinned->take(from.numel(), to.scalar_type()).copy_(from));
  }
}

}  // namespace trireme
