#include "trireme/memory/activation_store.h"

#include <utility>

#include "trireme/base/error.h"

namespace trireme {

void DeviceActivationStore::put(int64_t layer, Saved saved) {
  Saved& place = held_.at(static_cast<size_t>(layer));
  TRIREME_ASSERT(place.empty(), "layer ", layer, " was put twice");
  place = std::move(saved);
}

Saved DeviceActivationStore::take(int64_t layer) {
  Saved& place = held_.at(static_cast<size_t>(layer));
  TRIREME_ASSERT(!place.empty(), "layer ", layer, " has nothing to take");
  return std::exchange(place, {});
}

int64_t DeviceActivationStore::held_bytes() const {
  int64_t bytes = 0;
  for (const Saved& saved : held_)
    for (const at::Tensor& tensor : saved)
      if (tensor.defined()) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

}  // namespace trireme
