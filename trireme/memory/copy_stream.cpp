#include "trireme/memory/copy_stream.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace trireme {

CopyStream::CopyStream(at::Device device) : device_(device) {
  if (!device.is_cpu())
    stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, false);
}

c10::Stream CopyStream::compute() const {
  return c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
}

void CopyStream::wait_for_compute() {
  if (!stream_) return;
  c10::Event reached(device_.type());
  reached.record(compute());
  reached.block(*stream_);
}

void CopyStream::compute_waits(const Mark& mark) {
  if (mark) mark->block(compute());
}

void CopyStream::host_waits(const Mark& mark) {
  if (mark) mark->synchronize();
}

void CopyStream::copy(const at::Tensor& to, const at::Tensor& from) {
  if (!stream_) {
    to.copy_(from);
    return;
  }
  const c10::StreamGuard guard(*stream_);
  to.copy_(from, /*non_blocking=*/true);
}

CopyStream::Mark CopyStream::mark() {
  if (!stream_) return {};
  Mark mark(std::in_place, device_.type());
  mark->record(*stream_);
  return mark;
}

}  // namespace trireme
