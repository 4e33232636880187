#include "trireme/shard/offloaded_sums.h"

#include <exception>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/device/memory_account.h"

namespace trireme {

OffloadedSums::OffloadedSums(const std::vector<int64_t>& elements, at::Device device,
                             std::shared_ptr<CopyStream> copies, PinnedPool& pinned)
    : device_(device), copies_(std::move(copies)), sums_(elements.size()), leaving_(copies_) {
  const MemoryScope scope(MemoryCategory::gradients);
  for (size_t unit = 0; unit < elements.size(); ++unit)
    sums_[unit].host = pinned.take(elements[unit], at::kFloat).zero_();
}

OffloadedSums::~OffloadedSums() {
  try {
    for (const Sum& sum : sums_) CopyStream::host_waits(sum.copied);
  } catch (const std::exception&) {
    // The device is lost. The user should see the error that reported it.
  }
}

void OffloadedSums::clear() {
  leaving_.let_go();
  for (Sum& sum : sums_) {
    if (sum.coming.defined()) CopyStream::host_waits(sum.copied);  // left by a step that ended early
    sum.coming = at::Tensor();
    sum.put = false;
  }
}

void OffloadedSums::expect(int unit) {
  Sum& sum = this->sum(unit);
  if (!sum.put || sum.coming.defined()) return;
  const MemoryScope scope(MemoryCategory::gradients);
  sum.coming = at::empty(sum.host.sizes(), sum.host.options().device(device_));
  // Queued work of the computation's stream may still use that memory.
  copies_->wait_for_compute();
  copies_->copy(sum.coming, sum.host);
  sum.copied = copies_->mark();
}

at::Tensor OffloadedSums::earlier(int unit) {
  Sum& sum = this->sum(unit);
  TRIREME_ASSERT(sum.coming.defined() == sum.put, "unit ", unit, " was not expected");
  if (sum.put) copies_->compute_waits(sum.copied);
  return std::exchange(sum.coming, at::Tensor());
}

void OffloadedSums::put(int unit, const at::Tensor& sum) {
  Sum& slot = this->sum(unit);
  slot.copied = leaving_.copy(slot.host, sum);
  slot.put = true;
}

at::Tensor OffloadedSums::on_host(int unit) {
  Sum& sum = this->sum(unit);
  CopyStream::host_waits(sum.copied);
  return sum.host;
}

void OffloadedSums::finish() {
  for (Sum& sum : sums_) {
    if (std::exchange(sum.put, true)) continue;
    CopyStream::host_waits(sum.copied);
    sum.host.zero_();
  }
}

}  // namespace trireme
