#include "trireme/base/read_ahead.h"

#include <utility>

#include "trireme/base/error.h"

namespace trireme {
namespace {

// The one that next() gave last, and the one before it.
constexpr size_t kHeldByCaller = 2;

}  // namespace

ReadAhead::ReadAhead(std::vector<Range> ranges, std::vector<std::byte*> buffers)
    : ranges_(std::move(ranges)), buffers_(std::move(buffers)) {
  TRIREME_ASSERT(buffers_.size() > kHeldByCaller, buffers_.size(), " buffers to read ahead");
  reader_ = std::jthread([this](const std::stop_token& stop) { read_all(stop); });
}

void ReadAhead::read_all(const std::stop_token& stop) {
  for (size_t i = 0; i < ranges_.size(); ++i) {
    {
      std::unique_lock lock(mutex_);
      if (!changed_.wait(lock, stop, [&] { return i + kHeldByCaller < taken_ + buffers_.size(); })) return;
    }
    std::exception_ptr failure;
    try {
      const Range& range = ranges_[i];
      range.file->read(range.offset, buffers_[i % buffers_.size()], range.bytes);
    } catch (...) {
      failure = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    failure_ = failure;
    if (!failure) read_ = i + 1;
    changed_.notify_all();
    if (failure) return;
  }
}

const std::byte* ReadAhead::next() {
  std::unique_lock lock(mutex_);
  TRIREME_ASSERT(taken_ < ranges_.size(), "all ", ranges_.size(), " ranges are read");
  const size_t i = taken_++;
  changed_.notify_all();
  changed_.wait(lock, [&] { return read_ > i || failure_; });
  if (read_ <= i) std::rethrow_exception(failure_);
  return buffers_[i % buffers_.size()];
}

}  // namespace trireme
