// Where layers' spans of bytes lie while nobody reads them: on disk or, beside a GPU, in the host's memory.
// The calls for a layer repeat in the order store, stored, fetch, fetched. The slow work runs between the two
// calls of each pair.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

namespace trireme {

class SpanStorage {
 public:
  virtual ~SpanStorage() = default;
  SpanStorage& operator=(SpanStorage&&) = delete;
  // Begins to take `spans` ([bytes] uint8) over. When it throws, they are still the caller's alone.
  virtual void store(int64_t layer, const std::vector<at::Tensor>& spans) = 0;
  // Releases the spans given to store. Throws when they could not be stored.
  virtual void stored(int64_t layer) = 0;
  // Begins to bring the spans back into new memory.
  virtual void fetch(int64_t layer) = 0;
  // The complete spans. The storage then holds nothing of this layer.
  virtual std::vector<at::Tensor> fetched(int64_t layer) = 0;
  // True while memory given to store is in use.
  virtual bool storing(int64_t layer) const = 0;
};

}  // namespace trireme
