// Units' tensors on disk. In memory: those that are open, those read ahead, and at most kMostDiskWrites that
// are on their way back.
//
//   absent -> reading -> whole -> open -> (changed) writing -> absent
//
// Only the thread that uses a unit touches it. Threads share the list of writes alone.
#include <deque>
#include <mutex>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/device/memory_account.h"
#include "trireme/shard/disk_units.h"
#include "trireme/shard/unit_tensors.h"

namespace trireme {
namespace {

class DiskTensors final : public UnitTensors {
 public:
  // Reserves the space of all units at once: a disk that is too small shows before training begins.
  DiskTensors(const std::vector<int64_t>& elements, at::ScalarType dtype, SpillFile& spill,
              std::shared_ptr<PinnedPool> pinned)
      : dtype_(dtype), spill_(spill), pinned_(std::move(pinned)), slots_(elements.size()) {
    const auto element_bytes = static_cast<int64_t>(c10::elementSize(dtype));
    for (size_t unit = 0; unit < elements.size(); ++unit) {
      slots_[unit].elements = elements[unit];
      slots_[unit].region = spill_.reserve(elements[unit] * element_bytes);
    }
  }
  ~DiskTensors() override {
    writes_.clear();
    for (Slot& slot : slots_) {
      // The destructor waits: no other user may get the region while a transfer works on it.
      slot.transfer.reset();
      spill_.release(slot.region);
    }
  }

  void prefetch(int unit) override {
    Slot& slot = this->slot(unit);
    if (slot.content == Content::writing && !slot.transfer->pending()) finish(slot);
    if (slot.content == Content::absent) begin_read(slot);
  }
  at::Tensor open(int unit) override {
    Slot& slot = this->slot(unit);
    TRIREME_ASSERT(slot.content != Content::open, "unit ", unit, " is open already");
    if (slot.content == Content::writing) finish(slot);
    if (slot.content == Content::absent) begin_read(slot);
    finish(slot);
    slot.content = Content::open;
    return slot.values;
  }
  void close(int unit, bool changed) override {
    Slot& slot = this->slot(unit);
    TRIREME_ASSERT(slot.content == Content::open, "unit ", unit, " is not open");
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

 private:
  enum class Content { absent, reading, whole, open, writing };
  struct Slot {
    int64_t elements = 0;
    SpillFile::Region region;
    bool written = false;  // else its values are zero
    Content content = Content::absent;
    at::Tensor values;                              // while reading, whole or open
    std::shared_ptr<SpillFile::Transfer> transfer;  // while reading or writing
  };
  Slot& slot(int unit) { return slots_.at(static_cast<size_t>(unit)); }

  void begin_read(Slot& slot) {
    const MemoryScope scope(category_);
    slot.values = pinned_ ? pinned_->take(slot.elements, dtype_) : at::empty({slot.elements}, dtype_);
    if (!slot.written) {
      slot.values.zero_();
      slot.content = Content::whole;
      return;
    }
    slot.transfer =
        std::make_shared<SpillFile::Transfer>(spill_.read(slot.region, slot.values.mutable_data_ptr()));
    slot.content = Content::reading;
  }
  // Waits for the running transfer. After a read the values are whole; after a write they are on disk alone.
  static void finish(Slot& slot) {
    if (slot.content != Content::reading && slot.content != Content::writing) return;
    slot.transfer->wait();
    slot.transfer.reset();
    slot.content = slot.content == Content::reading ? Content::whole : Content::absent;
  }
  void limit_writes(std::shared_ptr<SpillFile::Transfer> newest) {
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

  at::ScalarType dtype_;
  // Values read from disk count in the category in which these tensors were made.
  MemoryCategory category_ = MemoryScope::current().category;
  SpillFile& spill_;
  std::shared_ptr<PinnedPool> pinned_;
  std::vector<Slot> slots_;
  std::mutex writes_mutex_;
  // The last writes, in the order in which they began.
  std::deque<std::shared_ptr<SpillFile::Transfer>> writes_;
};

}  // namespace

std::unique_ptr<UnitTensors> make_disk_tensors(const std::vector<int64_t>& elements, at::ScalarType dtype,
                                               SpillFile& spill, std::shared_ptr<PinnedPool> pinned) {
  return std::make_unique<DiskTensors>(elements, dtype, spill, std::move(pinned));
}

}  // namespace trireme
