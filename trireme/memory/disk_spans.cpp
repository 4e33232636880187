#include "trireme/memory/disk_spans.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "trireme/base/error.h"

namespace trireme {

DiskSpans::DiskSpans(int64_t layers, SpillFile& file, std::shared_ptr<PinnedPool> pinned)
    : file_(file), pinned_(std::move(pinned)), slots_(static_cast<size_t>(layers)) {}

DiskSpans::~DiskSpans() {
  for (Slot& slot : slots_) {
    slot.transfers.clear();
    release(slot);
  }
}

void DiskSpans::release(Slot& slot) {
  for (const SpillFile::Region& region : std::exchange(slot.regions, {})) file_.release(region);
}

void DiskSpans::reserve(Slot& slot, const std::vector<at::Tensor>& spans) {
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

void DiskSpans::store(int64_t layer, const std::vector<at::Tensor>& spans) {
  Slot& slot = this->slot(layer);
  TRIREME_ASSERT(!slot.holds, "layer ", layer, " was stored twice");
  reserve(slot, spans);
  slot.holds = true;
  slot.transfers.clear();
  for (size_t i = 0; i < spans.size(); ++i)
    slot.transfers.push_back(file_.write(slot.regions[i], spans[i].const_data_ptr(),
                                         std::make_shared<const at::Tensor>(spans[i])));
}

void DiskSpans::stored(int64_t layer) {
  for (SpillFile::Transfer& transfer : slot(layer).transfers) transfer.wait();
}

bool DiskSpans::storing(int64_t layer) const {
  const Slot& slot = slots_.at(static_cast<size_t>(layer));
  return slot.buffers.empty() &&
         std::any_of(slot.transfers.begin(), slot.transfers.end(),
                     [](const SpillFile::Transfer& transfer) { return transfer.pending(); });
}

void DiskSpans::fetch(int64_t layer) {
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

std::vector<at::Tensor> DiskSpans::fetched(int64_t layer) {
  Slot& slot = this->slot(layer);
  stored(layer);  // the transfers are the reads now
  slot.transfers.clear();
  slot.holds = false;
  return std::exchange(slot.buffers, {});
}

}  // namespace trireme
