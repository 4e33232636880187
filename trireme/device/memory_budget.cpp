#include "trireme/device/memory_budget.h"

#include <c10/core/CachingDeviceAllocator.h>

#include "trireme/base/error.h"
#include "trireme/device/host_memory_limit.h"

namespace trireme {
namespace {

// NCCL's channels and cuBLAS's workspaces.
constexpr int64_t kOutsideOnGpu_bytes = int64_t{1} << 30;

}  // namespace

void release_cached_memory(at::Device device) {
  release_cached_host_memory();
  if (!device.is_cpu()) c10::getDeviceAllocator(device.type())->emptyCache();
}

int64_t device_memory_left_bytes(at::Device device) {
  if (device.is_cpu()) return host_memory_left_bytes();
  return static_cast<int64_t>(c10::getDeviceAllocator(device.type())->getMemoryInfo(device.index()).first);
}

int64_t device_memory_bytes(at::Device device) {
  if (device.is_cpu()) return host_memory_limit_bytes();
  return static_cast<int64_t>(c10::getDeviceAllocator(device.type())->getMemoryInfo(device.index()).second);
}

int64_t memory_budget_bytes(at::Device device, int64_t left_bytes, int ranks) {
  TRIREME_ASSERT(ranks >= 1, "got ", ranks);
  return planned_bytes(left_bytes, ranks, device.is_cpu() ? kOutsideOnHost_bytes : kOutsideOnGpu_bytes);
}

}  // namespace trireme
