#include "trireme/shard/disk_tensors.h"

#include <utility>

#include "trireme/base/error.h"

namespace trireme {

DiskTensors::DiskTensors(const std::vector<int64_t>& elements, at::ScalarType dtype, SpillFile& spill,
                         std::shared_ptr<PinnedPool> pinned)
    : dtype_(dtype), spill_(spill), pinned_(std::move(pinned)), places_(elements.size()) {
  const auto element_bytes = static_cast<int64_t>(c10::elementSize(dtype));
  for (size_t unit = 0; unit < elements.size(); ++unit) {
    places_[unit].elements = elements[unit];
    if (elements[unit] > 0) places_[unit].region = spill_.reserve(elements[unit] * element_bytes);
  }
}

DiskTensors::~DiskTensors() {
  writes_.clear();
  for (Place& place : places_) {
    // The destructor waits: no other user may get the region while a transfer works on it.
    place.transfer.reset();
    if (place.elements > 0 && place.region.bytes > 0) spill_.release(place.region);
  }
}

void DiskTensors::begin_read(Place& place) {
  const MemoryScope scope(category_);
  place.values = pinned_ ? pinned_->take(place.elements, dtype_) : at::empty({place.elements}, dtype_);
  place.content = Content::whole;
  if (place.elements == 0) return;
  if (!place.written) {
    place.values.zero_();
    return;
  }
  place.transfer =
      std::make_shared<SpillFile::Transfer>(spill_.read(place.region, place.values.mutable_data_ptr()));
  place.content = Content::reading;
}

// Waits for the running transfer. After a read the values are whole; after a write they are on disk alone.
void DiskTensors::finish(Place& place) {
  if (place.content != Content::reading && place.content != Content::writing) return;
  place.transfer->wait();
  place.transfer.reset();
  place.content = place.content == Content::reading ? Content::whole : Content::absent;
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
  Place& at = place(unit);
  if (at.content == Content::writing && !at.transfer->pending()) finish(at);
  if (at.content == Content::absent) begin_read(at);
}

at::Tensor DiskTensors::open(int unit) {
  Place& at = place(unit);
  TRIREME_ASSERT(!at.open, "unit ", unit, " is open already");
  if (at.content == Content::writing) finish(at);
  if (at.content == Content::absent) begin_read(at);
  finish(at);
  at.open = true;
  return at.values;
}

void DiskTensors::close(int unit, bool changed) {
  Place& at = place(unit);
  TRIREME_ASSERT(at.open, "unit ", unit, " is not open");
  at.open = false;
  const auto values = std::make_shared<at::Tensor>(std::exchange(at.values, at::Tensor()));
  at.content = Content::absent;
  if (!changed || at.elements == 0) return;
  // The write frees the values when it is done.
  at.transfer =
      std::make_shared<SpillFile::Transfer>(spill_.write(at.region, values->const_data_ptr(), values));
  at.content = Content::writing;
  at.written = true;
  limit_writes(at.transfer);
}

}  // namespace trireme
