#include "trireme/shard/disk_tensors.h"

#include <utility>

#include "trireme/base/error.h"

namespace trireme {

DiskTensors::DiskTensors(const std::vector<int64_t>& elements, at::ScalarType dtype, SpillFile& spill,
                         std::shared_ptr<PinnedPool> pinned)
    : dtype_(dtype), spill_(spill), pinned_(std::move(pinned)), slots_(elements.size()) {
  const auto element_bytes = static_cast<int64_t>(c10::elementSize(dtype));
  for (size_t unit = 0; unit < elements.size(); ++unit) {
    slots_[unit].elements = elements[unit];
    if (elements[unit] > 0) slots_[unit].region = spill_.reserve(elements[unit] * element_bytes);
  }
}

DiskTensors::~DiskTensors() {
  writes_.clear();
  for (Slot& slot : slots_) {
    // The destructor waits: no other user may get the region while a transfer works on it.
    slot.transfer.reset();
    if (slot.elements > 0 && slot.region.bytes > 0) spill_.release(slot.region);
  }
}

void DiskTensors::begin_read(Slot& slot) {
  const MemoryScope scope(category_);
  slot.values = pinned_ ? pinned_->take(slot.elements, dtype_) : at::empty({slot.elements}, dtype_);
  slot.content = Content::whole;
  if (slot.elements == 0) return;
  if (!slot.written) {
    slot.values.zero_();
    return;
  }
  slot.transfer =
      std::make_shared<SpillFile::Transfer>(spill_.read(slot.region, slot.values.mutable_data_ptr()));
  slot.content = Content::reading;
}

// Waits for the running transfer. After a read the values are whole; after a write they are on disk alone.
void DiskTensors::finish(Slot& slot) {
  if (slot.content != Content::reading && slot.content != Content::writing) return;
  slot.transfer->wait();
  slot.transfer.reset();
  slot.content = slot.content == Content::reading ? Content::whole : Content::absent;
}

void DiskTensors::limit_writes(std::shared_ptr<SpillFile::Transfer> newest) {
  std::shared_ptr<SpillFile::Transfer> oldest;
  {
    const std::lock_guard lock(writes_mutex_);
    writes_.push_back(std::move(newest));
    if (writes_.size() <= kMostDiskWrites) return;
    oldest = std::move(writes_.front());
    writes_.pop_front();
  }
  // Waits without the lock, which another unit's thread may need. That thread's wait has the same result.
  oldest->wait();
}

void DiskTensors::prefetch(int unit) {
  Slot& slot = this->slot(unit);
  if (slot.content == Content::writing && !slot.transfer->pending()) finish(slot);
  if (slot.content == Content::absent) begin_read(slot);
}

at::Tensor DiskTensors::open(int unit) {
  Slot& slot = this->slot(unit);
  TRIREME_ASSERT(!slot.open, "unit ", unit, " is open already");
  if (slot.content == Content::writing) finish(slot);
  if (slot.content == Content::absent) begin_read(slot);
  finish(slot);
  slot.open = true;
  return slot.values;
}

void DiskTensors::close(int unit, bool changed) {
  Slot& slot = this->slot(unit);
  TRIREME_ASSERT(slot.open, "unit ", unit, " is not open");
  slot.open = false;
  const auto values = std::make_shared<at::Tensor>(std::exchange(slot.values, at::Tensor()));
  slot.content = Content::absent;
  if (!changed || slot.elements == 0) return;
  // The write frees the values when it is done.
  slot.transfer =
      std::make_shared<SpillFile::Transfer>(spill_.write(slot.region, values->const_data_ptr(), values));
  slot.content = Content::writing;
  slot.written = true;
  limit_writes(slot.transfer);
}

}  // namespace trireme
