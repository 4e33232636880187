// Spans on disk: written directly from the tensors' memory, read into new memory. A layer keeps its regions
// from step to step while its sizes do not change.
#include <algorithm>
#include <memory>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/memory/span_storage.h"

namespace trireme {
namespace {

class DiskSpans final : public SpanStorage {
 public:
  DiskSpans(int64_t layers, SpillFile& file, std::shared_ptr<PinnedPool> pinned)
      : file_(file), pinned_(std::move(pinned)), slots_(static_cast<size_t>(layers)) {}
  ~DiskSpans() override {
    for (Slot& slot : slots_) {
      slot.transfers.clear();
      release(slot);
    }
  }

  void store(int64_t layer, const std::vector<at::Tensor>& spans) override {
    Slot& slot = this->slot(layer);
    TRIREME_ASSERT(!slot.holds, "layer ", layer, " was stored twice");
    reserve(slot, spans);
    slot.holds = true;
    slot.transfers.clear();
    for (size_t i = 0; i < spans.size(); ++i)
      slot.transfers.push_back(file_.write(slot.regions[i], spans[i].const_data_ptr(),
                                           std::make_shared<const at::Tensor>(spans[i])));
  }
  void stored(int64_t layer) override {
    for (SpillFile::Transfer& transfer : slot(layer).transfers) transfer.wait();
  }
  void fetch(int64_t layer) override {
    Slot& slot = this->slot(layer);
    TRIREME_ASSERT(slot.holds && slot.buffers.empty(), "layer ", layer, " cannot be fetched");
    stored(layer);
    slot.transfers.clear();
    for (const SpillFile::Region& region : slot.regions) {
      // The allocator or the pool kept the block of the layer used last, and reuses it here.
      slot.buffers.push_back(pinned_ ? pinned_->take(region.bytes) : at::empty({region.bytes}, at::kByte));
      slot.transfers.push_back(file_.read(region, slot.buffers.back().mutable_data_ptr()));
    }
  }
  std::vector<at::Tensor> fetched(int64_t layer) override {
    Slot& slot = this->slot(layer);
    stored(layer);  // the transfers are the reads now
    slot.transfers.clear();
    slot.holds = false;
    return std::exchange(slot.buffers, {});
  }

 private:
  struct Slot {
    bool holds = false;
    std::vector<SpillFile::Region> regions;
    std::vector<at::Tensor> buffers;             // being read into
    std::vector<SpillFile::Transfer> transfers;  // declared last: destroyed first, which waits for them
  };
  Slot& slot(int64_t layer) { return slots_.at(static_cast<size_t>(layer)); }

  void reserve(Slot& slot, const std::vector<at::Tensor>& spans) {
    const bool fits = std::equal(
        slot.regions.begin(), slot.regions.end(), spans.begin(), spans.end(),
        [](const SpillFile::Region& region, const at::Tensor& span) { return region.bytes == span.numel(); });
    if (fits) return;
    // The sequence length changed. Other layers' unused regions have the old sizes and only take up space.
    for (Slot& other : slots_)
      if (!other.holds) release(other);
    try {
      for (const at::Tensor& span : spans) slot.regions.push_back(file_.reserve(span.numel()));
    } catch (...) {
      release(slot);
      throw;
    }
  }
  void release(Slot& slot) {
    for (const SpillFile::Region& region : std::exchange(slot.regions, {})) file_.release(region);
  }

  SpillFile& file_;
  std::shared_ptr<PinnedPool> pinned_;
  std::vector<Slot> slots_;
};

}  // namespace

std::unique_ptr<SpanStorage> make_disk_spans(int64_t layers, SpillFile& file,
                                             std::shared_ptr<PinnedPool> pinned) {
  return std::make_unique<DiskSpans>(layers, file, std::move(pinned));
}

}  // namespace trireme
