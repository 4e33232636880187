// The memory of the guarded device (guarded_device.h): two ranges of addresses. Tensors hold the first, where
// nothing may be touched; operators find the bytes as far into the second.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

#include <c10/core/CachingDeviceAllocator.h>

namespace trireme::testing {

// Gives out pieces of whole 512 bytes, as libtorch's allocator for CUDA does, and tells libtorch's observers
// of each. What was not written since, and what was given back, reads as NaN.
class GuardedMemory final : public c10::DeviceAllocator {
 public:
  GuardedMemory();

  // Where operators find the bytes of `address`, which lies in a tensor on the device.
  void* seen_by_operators(const void* address) const;
  // Whether operators can see `address`, that is, whether memory of the device lies there.
  bool is_seen_by_operators(const void* address) const;

  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, std::size_t bytes) const override;
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t pool) override;
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override;
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override;
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override;

 private:
  static void free_piece(void* address);
  void give_back(char* address);

  char* guarded_ = nullptr;
  char* open_ = nullptr;
  std::mutex mutex_;
  std::map<char*, size_t> free_;  // bytes by address; no two of them touch
  std::map<char*, size_t> used_;
  c10::CachingAllocator::Stat allocated_;
  int64_t reserved_bytes_ = 0;  // what was given back is cached, as libtorch's allocator for CUDA does
};

// The one of this process.
GuardedMemory& guarded_memory();

}  // namespace trireme::testing
