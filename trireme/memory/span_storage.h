// Where layers' spans of bytes lie while nobody reads them: on disk or, beside a GPU, in the host's memory.
// The calls for a layer repeat in the order store, stored, fetch, fetched. The slow work runs between the two
// calls of each pair.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/ATen.h>

#include "trireme/device/pinned_pool.h"
#include "trireme/memory/copy_stream.h"
#include "trireme/memory/spill_file.h"

namespace trireme {

class SpanStorage {
 public:
  virtual ~SpanStorage() = default;
  SpanStorage& operator=(SpanStorage&&) = delete;
  // Begins to take `spans` ([bytes] uint8) over. When it throws, they are still the caller's alone.
  // ConfigError when there is no memory for them, see PinnedPool.
  virtual void store(int64_t layer, const std::vector<at::Tensor>& spans) = 0;
  // Releases the spans given to store. Throws when they could not be stored.
  virtual void stored(int64_t layer) = 0;
  // Begins to bring the spans back into new memory.
  virtual void fetch(int64_t layer) = 0;
  // The complete spans. The storage then holds nothing of this layer.
  virtual std::vector<at::Tensor> fetched(int64_t layer) = 0;
};

// Of spans on the host. With `pinned`, they are read back into memory of that pool, for copies to a GPU. The
// file outlives the result.
std::unique_ptr<SpanStorage> make_disk_spans(int64_t layers, SpillFile& file,
                                             std::shared_ptr<PinnedPool> pinned = nullptr);
// Of spans on `device`; `copies` copies from and to it. `behind` must return pinned memory of a pool too,
// best of this pool, which then serves both directions.
std::unique_ptr<SpanStorage> make_host_spans(int64_t layers, at::Device device,
                                             std::shared_ptr<PinnedPool> pool,
                                             std::unique_ptr<CopyStream> copies,
                                             std::unique_ptr<SpanStorage> behind = nullptr);

}  // namespace trireme
