// Units' tensors on disk. In memory: those that are open, those read ahead, and at most kMostDiskWrites that
// are on their way back.
//
//   absent -> reading -> whole -> open -> (changed) writing -> absent
//
// Only the thread that uses a unit touches it. Threads share the list of writes alone.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "trireme/device/memory_account.h"
#include "trireme/shard/disk_units.h"
#include "trireme/shard/unit_tensors.h"

namespace trireme {

class DiskTensors final : public UnitTensors {
 public:
  // Reserves the space of all units at once: a disk that is too small shows before training begins. With
  // `pinned`, values are read into memory of that pool.
  DiskTensors(const std::vector<int64_t>& elements, at::ScalarType dtype, SpillFile& spill,
              std::shared_ptr<PinnedPool> pinned = nullptr);
  ~DiskTensors() override;
  at::Tensor open(int unit) override;
  void close(int unit, bool changed) override;
  void prefetch(int unit) override;

 private:
  enum class Content { absent, reading, writing, whole };
  struct Slot {
    int64_t elements = 0;
    SpillFile::Region region;
    bool written = false;  // else its values are zero
    bool open = false;
    Content content = Content::absent;
    at::Tensor values;                              // while reading or whole
    std::shared_ptr<SpillFile::Transfer> transfer;  // while reading or writing
  };
  Slot& slot(int unit) { return slots_.at(static_cast<size_t>(unit)); }
  void begin_read(Slot& slot);
  static void finish(Slot& slot);
  void limit_writes(std::shared_ptr<SpillFile::Transfer> newest);

  at::ScalarType dtype_;
  // Values read from disk count in the category in which these tensors were made.
  MemoryCategory category_ = MemoryScope::current().category;
  SpillFile& spill_;
  std::shared_ptr<PinnedPool> pinned_;
  std::vector<Slot> slots_;
  std::mutex writes_mutex_;
  std::deque<std::shared_ptr<SpillFile::Transfer>>
      writes_;  // the last writes, in the order in which they began
};

}  // namespace trireme
