#include "tests/support/guarded_memory.h"

#include <algorithm>
#include <cstring>
#include <sys/mman.h>

#include "trireme/base/error.h"

#include "tests/support/guarded_device.h"

namespace trireme::testing {
namespace {

constexpr size_t kBytes =
    size_t{1} << 32;  // of addresses; pages are the kernel's to give when they are written
constexpr size_t kPiece_bytes = 512;
constexpr int kNaN = 0xFF;  // in every byte: NaN in each floating type

char* map_range(int protection) {
  void* const range =
      mmap(nullptr, kBytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, /*fd=*/-1, /*offset=*/0);
  if (range == MAP_FAILED) throw InternalError("the guarded device got no addresses");
  return static_cast<char*>(range);
}

}  // namespace

GuardedMemory::GuardedMemory() : guarded_(map_range(PROT_NONE)), open_(map_range(PROT_READ | PROT_WRITE)) {
  free_[guarded_] = kBytes;
}

void* GuardedMemory::seen_by_operators(const void* address) const {
  return open_ + (static_cast<const char*>(address) - guarded_);
}

bool GuardedMemory::is_seen_by_operators(const void* address) const {
  const auto* const at = static_cast<const char*>(address);
  return at >= open_ && at < open_ + kBytes;
}

c10::DataPtr GuardedMemory::allocate(size_t bytes) {
  const c10::Device device = guarded_device();
  if (bytes == 0) return {nullptr, device};
  const size_t whole_bytes = (bytes + kPiece_bytes - 1) / kPiece_bytes * kPiece_bytes;
  char* address = nullptr;
  size_t allocated_bytes = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto piece =
        std::find_if(free_.begin(), free_.end(), [&](const auto& one) { return one.second >= whole_bytes; });
    if (piece == free_.end()) throw InternalError("the guarded device is full");
    address = piece->first;
    const size_t left_bytes = piece->second - whole_bytes;
    free_.erase(piece);
    if (left_bytes > 0) free_[address + whole_bytes] = left_bytes;
    used_[address] = whole_bytes;
    allocated_.increase(whole_bytes);
    reserved_bytes_ = std::max(reserved_bytes_, allocated_.current);
    allocated_bytes = static_cast<size_t>(allocated_.current);
    std::memset(seen_by_operators(address), kNaN, whole_bytes);
  }
  c10::reportMemoryUsageToProfiler(address, static_cast<int64_t>(whole_bytes), allocated_bytes,
                                   allocated_bytes, device);
  return {address, address, &free_piece, device};
}

void GuardedMemory::free_piece(void* address) {
  guarded_memory().give_back(static_cast<char*>(address));
}

void GuardedMemory::give_back(char* address) {
  size_t bytes = 0, allocated_bytes = 0;
  {
    const std::lock_guard lock(mutex_);
    bytes = used_.at(address);
    allocated_bytes = static_cast<size_t>(allocated_.current) - bytes;
  }
  // Before another thread can be given the same address.
  c10::reportMemoryUsageToProfiler(address, -static_cast<int64_t>(bytes), allocated_bytes, allocated_bytes,
                                   guarded_device());
  const std::lock_guard lock(mutex_);
  used_.erase(address);
  allocated_.decrease(bytes);
  std::memset(seen_by_operators(address), kNaN, bytes);
  auto piece = free_.emplace(address, bytes).first;
  if (const auto next = std::next(piece); next != free_.end() && address + bytes == next->first) {
    piece->second += next->second;
    free_.erase(next);
  }
  if (piece == free_.begin()) return;
  const auto before = std::prev(piece);
  if (before->first + before->second != address) return;
  before->second += piece->second;
  free_.erase(piece);
}

c10::DeleterFnPtr GuardedMemory::raw_deleter() const {
  return &free_piece;
}

void GuardedMemory::copy_data(void* to, const void* from, std::size_t bytes) const {
  std::memcpy(seen_by_operators(to), seen_by_operators(from), bytes);
}

void GuardedMemory::emptyCache(c10::MempoolId_t /*pool*/) {
  const std::lock_guard lock(mutex_);
  reserved_bytes_ = allocated_.current;
}

void GuardedMemory::recordStream(const c10::DataPtr& /*data*/, c10::Stream /*stream*/) {
  throw InternalError("the guarded device does not play recordStream");
}

c10::CachingDeviceAllocator::DeviceStats GuardedMemory::getDeviceStats(c10::DeviceIndex /*device*/) {
  const std::lock_guard lock(mutex_);
  c10::CachingDeviceAllocator::DeviceStats stats;
  stats.allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)] = allocated_;
  return stats;
}

void GuardedMemory::resetAccumulatedStats(c10::DeviceIndex /*device*/) {
  const std::lock_guard lock(mutex_);
  allocated_.reset_accumulated();
}

void GuardedMemory::resetPeakStats(c10::DeviceIndex /*device*/) {
  const std::lock_guard lock(mutex_);
  allocated_.reset_peak();
}

std::pair<size_t, size_t> GuardedMemory::getMemoryInfo(c10::DeviceIndex /*device*/) {
  const std::lock_guard lock(mutex_);
  return {kBytes - static_cast<size_t>(reserved_bytes_), kBytes};
}

GuardedMemory& guarded_memory() {
  static auto* const memory =
      new GuardedMemory;  // never destroyed: tensors of static life may outlive all else
  return *memory;
}

}  // namespace trireme::testing
