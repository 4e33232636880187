#include "bench/incumbents/caching_allocator.h"

#include <algorithm>
#include <iterator>

#include "trireme/base/error.h"
#include "trireme/base/round_up.h"

namespace trireme {
namespace {

constexpr int64_t kBlock_bytes = 512;               // kMinBlockSize
constexpr int64_t kPage_bytes = int64_t{20} << 20;  // kLargeBuffer: what is mapped at once

}  // namespace

int64_t CachingAllocator::allocate(int stream, int64_t bytes) {
  Range& range = ranges_.at(static_cast<std::size_t>(stream));
  bytes = round_up(std::max<int64_t>(bytes, 1), kBlock_bytes);
  // The smallest free block that is large enough. The last one can grow, so it counts as the largest.
  auto best = range.free.end();
  for (auto block = range.free.begin(); block != range.free.end(); ++block) {
    const bool last = block->first + block->second == range.end_bytes;
    if (block->second >= bytes && !last && (best == range.free.end() || block->second < best->second))
      best = block;
  }
  int64_t address = range.end_bytes;
  if (best != range.free.end()) {
    address = best->first;
    const int64_t left = best->second - bytes;
    range.free.erase(best);
    if (left > 0) range.free.emplace(address + bytes, left);
  } else {
    int64_t tail_bytes = 0;
    if (!range.free.empty()) {
      const auto last = std::prev(range.free.end());
      if (last->first + last->second == range.end_bytes) {
        address = last->first;
        tail_bytes = last->second;
        range.free.erase(last);
      }
    }
    if (tail_bytes > bytes) range.free.emplace(address + bytes, tail_bytes - bytes);
    range.end_bytes = std::max(range.end_bytes, address + bytes);
  }
  range.used.emplace(address, bytes);
  range.highest_bytes = std::max(range.highest_bytes, range.end_bytes);
  held_bytes_ += bytes;
  return address;
}

void CachingAllocator::release(int stream, int64_t address) {
  Range& range = ranges_.at(static_cast<std::size_t>(stream));
  const auto block = range.used.find(address);
  TRIREME_ASSERT(block != range.used.end(), "no block is allocated at ", address);
  int64_t begin = address, bytes = block->second;
  held_bytes_ -= bytes;
  range.used.erase(block);
  auto next = range.free.lower_bound(begin);
  if (next != range.free.end() && next->first == begin + bytes) {
    bytes += next->second;
    next = range.free.erase(next);
  }
  if (next != range.free.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == begin) {
      begin = before->first;
      bytes += before->second;
      range.free.erase(before);
    }
  }
  range.free.emplace(begin, bytes);
}

int64_t CachingAllocator::mapped_bytes() const {
  int64_t bytes = 0;
  for (const Range& range : ranges_) bytes += round_up(range.highest_bytes, kPage_bytes);
  return bytes;
}

}  // namespace trireme
