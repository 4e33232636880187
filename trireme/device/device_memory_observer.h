// Counts a GPU's tensors in a MemoryAccount. libtorch's CUDA caching allocator reports every block that it
// gives and takes back, with its bytes, to a reporter that the calling thread carries; this is one.
//
//   const RankMemory memory = make_rank_memory(device);
//   const RankMemoryScope counted(memory);
//
// An allocation that fails there is told to the same reporter just before libtorch would throw c10::OutOfMemoryError,
// on the thread that asked and still inside its MemoryScope. The error is thrown here instead, as the CPU's allocator
// throws it: a catch further up would not know the category any more, and an error that is not Trireme's own would
// leave a collective as a CommError, after which a run is started again and fails again.
//
// Used only when the device is not the CPU. Builds without CUDA compile it, and its test plays the
// allocator's part; no test of this tree has seen it behind a real CUDA allocator.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>

#include <ATen/ATen.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include "trireme/device/memory_account.h"

namespace trireme {

class DeviceMemoryObserver final : public c10::MemoryReportingInfoBase {
 public:
  // `bytes` > 0: given out, and counted in this thread's place; < 0: taken back. The CPU's are not looked at.
  void reportMemoryUsage(void* data, int64_t bytes, size_t total_allocated, size_t total_reserved,
                         c10::Device device) override;
  // Throws the ConfigError of out_of_memory.h; nothing for the CPU. libtorch's allocator has tried all it can by
  // then, and holds what it needs for its own error in objects that this one unwinds just as well.
  void reportOutOfMemory(int64_t asked_bytes, size_t allocated_bytes, size_t reserved_bytes,
                         c10::Device device) override;
  bool memoryProfilingEnabled() const override { return true; }

  // Counted as another category from now on; nothing happens for memory that it has not seen.
  void recount(const void* data, MemoryCategory category);

 private:
  struct Block {
    MemoryPlace place;
    int64_t bytes = 0;
  };
  std::mutex mutex_;
  std::unordered_map<const void*, Block> blocks_;
};

// What counts a rank's memory.
struct RankMemory {
  std::shared_ptr<MemoryAccount> account;
  std::shared_ptr<DeviceMemoryObserver> observer;  // null on the CPU, whose allocator counts
};
RankMemory make_rank_memory(at::Device device);

// Allocations of this thread, on the host and the device, are counted in the rank's account.
class RankMemoryScope {
 public:
  explicit RankMemoryScope(const RankMemory& memory) : scope_(memory.account, MemoryCategory::other) {
    if (memory.observer) guard_.emplace(c10::DebugInfoKind::PROFILER_STATE, memory.observer);
  }

 private:
  MemoryScope scope_;
  std::optional<c10::DebugInfoGuard> guard_;
};

}  // namespace trireme
