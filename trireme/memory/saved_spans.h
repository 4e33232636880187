// Turns a layer's saved tensors into plain spans of bytes, which can be moved, and rebuilds the tensors over
// the moved bytes: same order, dtype, shape and strides. Tensors that share memory (views of one packed
// buffer) share one span, and share memory again afterwards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

#include "trireme/memory/activation_store.h"

namespace trireme {

struct SavedSpans;

class SavedLayout {
 public:
  // The tensors over `spans`: the bytes of split_saved(), at any address. Takes the spans' memory.
  Saved tensors(const std::vector<at::Tensor>& spans) const;
  int64_t bytes() const { return bytes_; }  // of all spans

 private:
  friend SavedSpans split_saved(const Saved& saved);
  struct View {
    bool defined = false;
    size_t span = 0;
    int64_t first_byte = 0;  // in the span
    at::ScalarType dtype = at::kFloat;
    std::vector<int64_t> sizes;
    std::vector<int64_t> strides;
  };
  std::vector<View> views_;
  int64_t bytes_ = 0;
};

struct SavedSpans {
  SavedLayout layout;
  std::vector<at::Tensor> spans;  // each [bytes] uint8, over the memory of the saved tensors, not a copy
};

// InternalError for tensors without plain strided memory.
SavedSpans split_saved(const Saved& saved);

}  // namespace trireme
