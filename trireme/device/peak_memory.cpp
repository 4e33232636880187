#include "trireme/device/peak_memory.h"

#include <c10/core/CachingDeviceAllocator.h>

#include "trireme/device/processor.h"

namespace trireme {

int64_t peak_memory_bytes(at::Device device) {
  if (device.is_cpu()) return peak_resident_bytes();
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return c10::getDeviceAllocator(device.type())->getDeviceStats(device.index()).allocated_bytes.at(kAll).peak;
}

}  // namespace trireme
