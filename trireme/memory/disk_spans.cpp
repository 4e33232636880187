#include "trireme/memory/disk_spans.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "trireme/base/error.h"

namespace trireme {

DiskSpans::DiskSpans(int64_t layers, SpillFile& file, std::shared_ptr<PinnedPool> pinned)
    : file_(file), pinned_(std::move(pinned)), places_(static_cast<size_t>(layers)) {}

DiskSpans::~DiskSpans() {
  for (Place& place : places_) {
    place.transfers.clear();
    release(place);
  }
}

void DiskSpans::release(Place& place) {
  for (const SpillFile::Region& region : std::exchange(place.regions, {})) file_.release(region);
}

void DiskSpans::reserve(Place& place, const std::vector<at::Tensor>& spans) {
  const bool fits = std::equal(
      place.regions.begin(), place.regions.end(), spans.begin(), spans.end(),
      [](const SpillFile::Region& region, const at::Tensor& span) { return region.bytes == span.numel(); });
  if (fits) return;
  // The sequence length changed. Other layers' unused regions have the old sizes and only take up space.
  for (Place& other : places_)
    if (!other.holds) release(other);
  try {
    for (const at::Tensor& span : spans) place.regions.push_back(file_.reserve(span.numel()));
  } catch (...) {
    release(place);
    throw;
  }
}

void DiskSpans::store(int64_t layer, const std::vector<at::Tensor>& spans) {
  Place& place = this->place(layer);
  TRIREME_ASSERT(!place.holds, "layer ", layer, " was stored twice");
  reserve(place, spans);
  place.holds = true;
  place.transfers.clear();
  for (size_t i = 0; i < spans.size(); ++i)
    place.transfers.push_back(file_.write(place.regions[i], spans[i].const_data_ptr(),
                                          std::make_shared<const at::Tensor>(spans[i])));
}

void DiskSpans::stored(int64_t layer) {
  for (SpillFile::Transfer& transfer : place(layer).transfers) transfer.wait();
}

bool DiskSpans::storing(int64_t layer) const {
  const Place& place = places_.at(static_cast<size_t>(layer));
  return place.buffers.empty() &&
         std::any_of(place.transfers.begin(), place.transfers.end(),
                     [](const SpillFile::Transfer& transfer) { return transfer.pending(); });
}

void DiskSpans::fetch(int64_t layer) {
  Place& place = this->place(layer);
  TRIREME_ASSERT(place.holds && place.buffers.empty(), "layer ", layer, " cannot be fetched");
  stored(layer);
  place.transfers.clear();
  for (const SpillFile::Region& region : place.regions) {
    // The allocator or the pool kept the block of the layer used last, and reuses it here.
    place.buffers.push_back(pinned_ ? pinned_->take(region.bytes) : at::empty({region.bytes}, at::kByte));
    place.transfers.push_back(file_.read(region, place.buffers.back().mutable_data_ptr()));
  }
}

std::vector<at::Tensor> DiskSpans::fetched(int64_t layer) {
  Place& place = this->place(layer);
  stored(layer);  // the transfers are the reads now
  place.transfers.clear();
  place.holds = false;
  return std::exchange(place.buffers, {});
}

}  // namespace trireme
