// Keeps, between forward and backward, what each layer's backward reads. What that is, is the layer's
// business (Saved is opaque here); where it lies, is this store's. This one keeps it on the device.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

namespace trireme {

// The tensors a layer's forward leaves for its backward; their order is known to the layer alone.
using Saved = std::vector<at::Tensor>;

class ActivationStore {
 public:
  virtual ~ActivationStore() = default;
  ActivationStore& operator=(ActivationStore&&) = delete;
  virtual void put(int64_t layer, Saved saved) = 0;
  // Hands the layer's tensors over and forgets them. InternalError when there are none.
  virtual Saved take(int64_t layer) = 0;
  // In the memory of the device.
  virtual int64_t held_bytes() const = 0;
  // Put and not yet taken, and kept elsewhere or on the way there or back.
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
