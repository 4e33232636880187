// Counts a GPU's tensors in a MemoryAccount. libtorch's CUDA caching allocator reports every block that it
// allocates or frees, with its bytes, to the reporter of the calling thread. This class is such a reporter.
//
//   const RankMemory memory = make_rank_memory(device);
//   const RankMemoryScope counted(memory);
//
// The allocator also reports a failed allocation, just before libtorch would throw c10::OutOfMemoryError, on
// the requesting thread and inside its MemoryScope. The observer throws Trireme's error instead, as the CPU
// allocator does. A catch further up would no longer know the category. Any other error would leave a
// collective as a CommError, after which the run would restart and fail again.
//
// Used only if the device is not the CPU. Builds without CUDA compile it too, and its test plays the
// allocator's role.
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
  // `bytes` > 0: allocated, and counted in this thread's MemoryScope; < 0: freed. Ignores CPU memory.
  void reportMemoryUsage(void* data, int64_t bytes, size_t total_allocated, size_t total_reserved,
                         c10::Device device) override;
  // Throws the ConfigError of out_of_memory.h; ignores CPU memory. libtorch's allocator has tried everything
  // by then, and this exception unwinds its objects as its own error would.
  void reportOutOfMemory(int64_t asked_bytes, size_t allocated_bytes, size_t reserved_bytes,
                         c10::Device device) override;
  bool memoryProfilingEnabled() const override { return true; }

  // Counts a block as `category` from now on. Ignores blocks that were not reported.
  void recount(const void* data, MemoryCategory category);

 private:
  struct Block {
    MemoryOwner owner;
    int64_t bytes = 0;
  };
  std::mutex mutex_;
  std::unordered_map<const void*, Block> blocks_;
};

// The objects that count a rank's memory.
struct RankMemory {
  std::shared_ptr<MemoryAccount> account;
  std::shared_ptr<DeviceMemoryObserver> observer;  // null on the CPU, whose allocator counts
};
RankMemory make_rank_memory(at::Device device);

// While it lives, allocations of this thread on host and device are counted in the rank's account.
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
