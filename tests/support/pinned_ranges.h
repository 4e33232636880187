// Pinning for tests without a GPU: keeps the ranges that are pinned, and refuses what it is told to.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include <gtest/gtest.h>

#include "trireme/device/host_pinning.h"

namespace trireme::testing {

class PinnedRanges {
 public:
  void refuse_beyond(int64_t bytes) { most_bytes_ = bytes; }

  int64_t bytes() const {
    const std::lock_guard lock(mutex_);
    return bytes_;
  }
  int pins() const {  // so far
    const std::lock_guard lock(mutex_);
    return pins_;
  }
  bool holds(const void* data, int64_t bytes) const {
    const std::lock_guard lock(mutex_);
    const auto range = ranges_.find(reinterpret_cast<intptr_t>(data));
    return range != ranges_.end() && range->second >= bytes;
  }

  std::string pin(void* data, int64_t bytes) {
    const std::lock_guard lock(mutex_);
    if (bytes_ + bytes > most_bytes_) return "the test has pinned enough";
    const auto begin = reinterpret_cast<intptr_t>(data);
    EXPECT_EQ(begin % 4096, 0);
    EXPECT_EQ(bytes % 4096, 0);
    // A page is pinned once: a driver would refuse it.
    const auto after = ranges_.lower_bound(begin);
    EXPECT_TRUE(after == ranges_.end() || begin + bytes <= after->first);
    EXPECT_TRUE(after == ranges_.begin() || std::prev(after)->first + std::prev(after)->second <= begin);
    ranges_[begin] = bytes;
    bytes_ += bytes;
    ++pins_;
    return {};
  }
  void unpin(void* data) {
    const std::lock_guard lock(mutex_);
    const auto range = ranges_.find(reinterpret_cast<intptr_t>(data));
    ASSERT_TRUE(range != ranges_.end());
    bytes_ -= range->second;
    ranges_.erase(range);
  }

 private:
  mutable std::mutex mutex_;
  std::map<intptr_t, int64_t> ranges_;
  int64_t bytes_ = 0;
  int64_t most_bytes_ = int64_t{1} << 60;
  int pins_ = 0;
};

inline HostPinning pinning_of(const std::shared_ptr<PinnedRanges>& ranges) {
  return {[ranges](void* data, int64_t bytes) { return ranges->pin(data, bytes); },
          [ranges](void* data) { ranges->unpin(data); }};
}

}  // namespace trireme::testing
