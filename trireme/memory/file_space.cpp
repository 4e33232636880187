#include "trireme/memory/file_space.h"

#include <iterator>

#include "trireme/base/error.h"

namespace trireme {

int64_t FileSpace::take(int64_t bytes) {
  for (auto stretch = free_.begin(); stretch != free_.end(); ++stretch) {
    const auto [offset, size] = *stretch;
    if (size < bytes) continue;
    free_.erase(stretch);
    if (size > bytes) free_.emplace(offset + bytes, size - bytes);
    return offset;
  }
  const int64_t offset = end_;
  end_ += bytes;
  return offset;
}

void FileSpace::give_back(int64_t offset, int64_t bytes) {
  auto next = free_.lower_bound(offset);
  const bool before = next != free_.begin();
  auto previous = before ? std::prev(next) : free_.end();
  TRIREME_ASSERT(bytes > 0 && offset >= 0 && offset + bytes <= end_ &&
                     (next == free_.end() || offset + bytes <= next->first) &&
                     (!before || previous->first + previous->second <= offset),
                 bytes, " bytes at ", offset, " are not taken");
  if (before && previous->first + previous->second == offset) {
    offset = previous->first;
    bytes += previous->second;
    free_.erase(previous);
  }
  if (next != free_.end() && next->first == offset + bytes) {
    bytes += next->second;
    free_.erase(next);
  }
  if (offset + bytes == end_)
    end_ = offset;
  else
    free_.emplace(offset, bytes);
}

}  // namespace trireme
