#include "trireme/device/peak_memory.h"

#include <sys/resource.h>

#include <c10/core/CachingDeviceAllocator.h>

namespace trireme {

int64_t peak_memory_bytes(at::Device device) {
  if (device.is_cpu()) {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<int64_t>(usage.ru_maxrss) * 1024;
  }
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return c10::getDeviceAllocator(device.type())->getDeviceStats(device.index()).allocated_bytes.at(kAll).peak;
}

}  // namespace trireme
