#include "trireme/memory/activation_store.h"

#include <utility>

#include "trireme/base/error.h"

namespace trireme {

void DeviceActivationStore::put(int64_t layer, Saved saved) {
  Saved& slot = held_.at(static_cast<size_t>(layer));
  TRIREME_ASSERT(slot.empty(), "layer ", layer, " was put twice");
  slot = std::move(saved);
}

Saved DeviceActivationStore::take(int64_t layer) {
  Saved& slot = held_.at(static_cast<size_t>(layer));
  TRIREME_ASSERT(!slot.empty(), "layer ", layer, " has nothing to take");
  return std::exchange(slot, {});
}

int64_t DeviceActivationStore::held_bytes() const {
  int64_t bytes = 0;
  for (const Saved& saved : held_)
    for (const at::Tensor& tensor : saved)
      if (tensor.defined()) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

}  // namespace trireme
