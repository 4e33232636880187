// Spans on disk: written directly from the tensors' memory, read into new memory. A layer keeps its regions
// from step to step while its sizes do not change.
#pragma once

#include <memory>
#include <vector>

#include "trireme/device/pinned_pool.h"
#include "trireme/memory/span_storage.h"
#include "trireme/memory/spill_file.h"

namespace trireme {

class DiskSpans final : public SpanStorage {
 public:
  // Spans lie on the host. With `pinned`, spans are read back into memory of that pool, for copies to a GPU.
  // The file outlives this object.
  DiskSpans(int64_t layers, SpillFile& file, std::shared_ptr<PinnedPool> pinned = nullptr);
  ~DiskSpans() override;

  void store(int64_t layer, const std::vector<at::Tensor>& spans) override;
  void stored(int64_t layer) override;
  void fetch(int64_t layer) override;
  std::vector<at::Tensor> fetched(int64_t layer) override;
  bool storing(int64_t layer) const override;

 private:
  struct Slot {
    bool holds = false;
    std::vector<SpillFile::Region> regions;
    std::vector<at::Tensor> buffers;             // being read into
    std::vector<SpillFile::Transfer> transfers;  // declared last: destroyed first, which waits for them
  };
  Slot& slot(int64_t layer) { return slots_.at(static_cast<size_t>(layer)); }
  void reserve(Slot& slot, const std::vector<at::Tensor>& spans);
  void release(Slot& slot);

  SpillFile& file_;
  std::shared_ptr<PinnedPool> pinned_;
  std::vector<Slot> slots_;
};

}  // namespace trireme
