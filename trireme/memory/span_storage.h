// Where layers' spans of bytes lie while nobody reads them: on disk, in the host's memory beside a GPU. For
// each layer the calls go round: store, stored, fetch, fetched. What takes time goes on between the first and
// the second of each pair.
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
  // Afterwards the spans given to store are let go. Throws when they could not be stored.
  virtual void stored(int64_t layer) = 0;
  // Begins to bring them back into new memory.
  virtual void fetch(int64_t layer) = 0;
  // The spans, whole; the storage holds nothing of this layer any more.
  virtual std::vector<at::Tensor> fetched(int64_t layer) = 0;
  // True while memory given to store is in use.
  virtual bool storing(int64_t layer) const = 0;
};

}  // namespace trireme
