#include "trireme/shard/unit_uploads.h"

#include <exception>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/device/memory_account.h"

namespace trireme {

UnitUploads::UnitUploads(size_t units, at::Device device, std::shared_ptr<CopyStream> copies)
    : device_(device), copies_(std::move(copies)), uploads_(units) {}

UnitUploads::~UnitUploads() {
  try {
    for (const Upload& upload : uploads_) CopyStream::host_waits(upload.copied);
  } catch (const std::exception&) {
    // The device is lost. The user should see the error that reported it.
  }
}

CopyStream::Mark UnitUploads::begin(int unit, const at::Tensor& host) {
  Upload& upload = uploads_.at(static_cast<size_t>(unit));
  TRIREME_ASSERT(!upload.values.defined(), "unit ", unit, " is on its way already");
  const MemoryScope scope(MemoryCategory::parameters);
  upload.values = at::empty(host.sizes(), host.options().device(device_));
  // Queued work of the computation's stream may still use that memory.
  copies_->wait_for_compute();
  copies_->copy(upload.values, host);
  upload.copied = copies_->mark();
  return upload.copied;
}

UnitUploads::Upload UnitUploads::take(int unit) {
  TRIREME_ASSERT(begun(unit), "unit ", unit, " is not on its way");
  return std::exchange(uploads_[static_cast<size_t>(unit)], {});
}

at::Tensor UnitUploads::finish(int unit) {
  const Upload upload = take(unit);
  copies_->compute_waits(upload.copied);
  return upload.values;
}

void UnitUploads::finish_beside(int unit, const std::function<void(const at::Tensor& values)>& give) {
  const Upload upload = take(unit);
  // The memory that the work writes to may be in use as well.
  copies_->wait_for_compute();
  copies_->behind_copies([&] { give(upload.values); });
}

void UnitUploads::drop(int unit) {
  const Upload upload = std::exchange(uploads_.at(static_cast<size_t>(unit)), {});
  CopyStream::host_waits(upload.copied);
}

}  // namespace trireme
