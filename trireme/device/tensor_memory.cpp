#include "trireme/device/tensor_memory.h"

#include "trireme/device/cpu_caching_allocator.h"
#include "trireme/device/device_memory_observer.h"

namespace trireme {

void count_as(const at::Tensor& tensor, MemoryCategory category) {
  if (!tensor.defined()) return;
  const c10::DataPtr& data = tensor.storage().data_ptr();
  if (tensor.is_cpu()) {
    count_host_block_as(data, category);
    return;
  }
  auto* info = c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE);
  if (auto* observer = dynamic_cast<DeviceMemoryObserver*>(info)) observer->recount(data.get(), category);
}

}  // namespace trireme
