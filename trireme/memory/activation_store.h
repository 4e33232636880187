// Keeps the tensors that each layer's backward reads, between forward and backward. The layer alone knows
// what they are (Saved); the store decides where they lie (make_activation_store.h).
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
};

}  // namespace trireme
