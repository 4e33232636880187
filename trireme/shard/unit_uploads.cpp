#include "trireme/shard/unit_uploads.h"

#include <exception>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/device/memory_account.h"

namespace trireme {

UnitUploads::UnitUploads(size_t units, at::Device device, std::shared_ptr<CopyStream> copies)
    : device_(device), copies_(std::move(copies)), uploads_(units), brought_(units), leaving_(copies_) {}

UnitUploads::~UnitUploads() {
  try {
    for (const Upload& upload : uploads_) CopyStream::host_waits(upload.copied);
    for (const CopyStream::Mark& brought : brought_) CopyStream::host_waits(brought);
  } catch (const std::exception&) {
    // The device is lost. The user should see the error that reported it.
  }
}

CopyStream::Mark UnitUploads::begin(int unit, const at::Tensor& host) {
  Upload& upload = uploads_.at(static_cast<size_t>(unit));
  TRIREME_ASSERT(!upload.values.defined(), "unit ", unit, " is on its way already");
  const MemoryScope scope(MemoryCategory::parameters);
  leaving_.let_go();
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
  CopyStream::host_waits(std::exchange(brought_.at(static_cast<size_t>(unit)), nullptr));
}

void UnitUploads::bring_back(int unit, const at::Tensor& host, const at::Tensor& values) {
  TRIREME_ASSERT(!begun(unit), "unit ", unit, " is on its way to the device");
  brought_.at(static_cast<size_t>(unit)) = leaving_.copy(host, values);
}

}  // namespace trireme
