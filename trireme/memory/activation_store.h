// Keeps the tensors that each layer's backward reads, between forward and backward. The layer alone knows
// what they are (Saved); the store decides where they lie. DeviceActivationStore keeps them on the device.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

namespace trireme {

// The tensors that a layer's forward leaves for its backward. Only the layer knows their order.
using Saved = std::vector<at::Tensor>;

class ActivationStore {
 public:
  virtual ~ActivationStore() = default;
  ActivationStore& operator=(ActivationStore&&) = delete;
  virtual void put(int64_t layer, Saved saved) = 0;
  // Hands the layer's tensors over and forgets them. InternalError when there are none.
  virtual Saved take(int64_t layer) = 0;
  // Bytes in the memory of the device.
  virtual int64_t held_bytes() const = 0;
  // Bytes of layers put and not yet taken that lie elsewhere, or are moving there or back.
  virtual int64_t spilled_bytes() const { return 0; }
};

class DeviceActivationStore final : public ActivationStore {
 public:
  explicit DeviceActivationStore(int64_t layers) : held_(static_cast<size_t>(layers)) {}
  void put(int64_t layer, Saved saved) override;
  Saved take(int64_t layer) override;
  int64_t held_bytes() const override;

 private:
  std::vector<Saved> held_;
};

}  // namespace trireme
