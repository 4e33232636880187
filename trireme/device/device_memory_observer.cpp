#include "trireme/device/device_memory_observer.h"

#include <utility>

#include <c10/core/AllocatorConfig.h>

#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/device/out_of_memory.h"

namespace trireme {

void DeviceMemoryObserver::reportMemoryUsage(void* data, int64_t bytes, size_t /*total_allocated*/,
                                             size_t /*total_reserved*/, c10::Device device) {
  if (device.is_cpu()) return;
  const std::lock_guard lock(mutex_);
  // If a known block is allocated again, a thread without this observer freed it without a report.
  if (const auto known = blocks_.find(data); known != blocks_.end()) {
    const Block& block = known->second;
    block.owner.account->add(block.owner.category, -block.bytes);
    blocks_.erase(known);
  }
  const MemoryOwner& owner = MemoryScope::current();
  if (bytes <= 0 || owner.account == nullptr) return;
  blocks_[data] = {owner, bytes};
  owner.account->add(owner.category, bytes);
}

namespace {

std::string hint_on_scattered_memory(int64_t scattered_bytes) {
  const std::string lie = cat(format_bytes(scattered_bytes), " more lie in pieces that are too small");
  if (c10::CachingAllocator::AcceleratorAllocatorConfig::use_expandable_segments()) return lie;
  return cat(lie, ": PYTORCH_ALLOC_CONF=expandable_segments:True lets them be joined");
}

}  // namespace

void DeviceMemoryObserver::reportOutOfMemory(int64_t asked_bytes, size_t allocated_bytes,
                                             size_t reserved_bytes, c10::Device device) {
  if (device.is_cpu()) return;
  const auto allocated = static_cast<int64_t>(allocated_bytes);
  const int64_t scattered = static_cast<int64_t>(reserved_bytes) - allocated;
  throw_out_of_memory("device", MemorySpace::device, asked_bytes, allocated,
                      scattered < asked_bytes ? std::string() : hint_on_scattered_memory(scattered));
}

void DeviceMemoryObserver::recount(const void* data, MemoryCategory category) {
  const std::lock_guard lock(mutex_);
  const auto known = blocks_.find(data);
  if (known == blocks_.end()) return;
  Block& block = known->second;
  block.owner.account->move(std::exchange(block.owner.category, category), category, block.bytes);
}

RankMemory make_rank_memory(at::Device device) {
  if (device.is_cpu()) return {std::make_shared<MemoryAccount>(MemorySpace::device), nullptr};
  return {std::make_shared<MemoryAccount>(MemorySpace::host), std::make_shared<DeviceMemoryObserver>()};
}

}  // namespace trireme
