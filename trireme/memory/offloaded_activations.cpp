#include "trireme/memory/offloaded_activations.h"

#include <utility>

#include "trireme/base/error.h"
#include "trireme/device/memory_account.h"

namespace trireme {

OffloadedActivations::OffloadedActivations(int64_t layers, std::unique_ptr<SpanStorage> elsewhere,
                                           const ResidentLayers& resident)
    : resident_(resident), slots_(static_cast<size_t>(layers)), elsewhere_(std::move(elsewhere)) {
  TRIREME_ASSERT(resident.resident_layers >= 0 && resident.leaving_layers >= 1 && resident.ahead_layers >= 0);
}

void OffloadedActivations::put(int64_t layer, Saved saved) {
  Slot& slot = this->slot(layer);
  TRIREME_ASSERT(slot.state == State::absent, "layer ", layer, " was put twice");
  const MemoryScope scope(MemoryCategory::activations);
  SavedSpans split = split_saved(saved);
  slot = {State::resident, std::move(split.layout), std::move(split.spans)};
  saved.clear();
  if (slot.layout.bytes() == 0) return;  // no bytes to offload
  here_.push_back(layer);
  while (static_cast<int64_t>(here_.size()) > resident_.resident_layers) send_oldest_away();
}

void OffloadedActivations::send_oldest_away() {
  while (static_cast<int64_t>(leaving_.size()) >= resident_.leaving_layers) {
    const int64_t gone = leaving_.front();
    leaving_.pop_front();
    elsewhere_->stored(gone);
  }
  const int64_t layer = here_.front();
  Slot& oldest = slot(layer);
  elsewhere_->store(layer, oldest.spans);
  oldest.spans.clear();
  oldest.state = State::away;
  here_.pop_front();
  leaving_.push_back(layer);
}

void OffloadedActivations::begin_fetch(int64_t layer) {
  if (std::erase(leaving_, layer) > 0) elsewhere_->stored(layer);
  elsewhere_->fetch(layer);
  slot(layer).state = State::coming;
}

Saved OffloadedActivations::take(int64_t layer) {
  Slot& slot = this->slot(layer);
  TRIREME_ASSERT(slot.state != State::absent, "layer ", layer, " has nothing to take");
  const MemoryScope scope(MemoryCategory::activations);
  if (slot.state == State::away) begin_fetch(layer);
  int64_t ahead = 0;
  for (int64_t below = layer - 1; below >= 0 && ahead < resident_.ahead_layers; --below) {
    const Slot& other = this->slot(below);
    if (other.state == State::absent || other.layout.bytes() == 0) continue;
    ++ahead;
    if (other.state == State::away) begin_fetch(below);
  }
  if (slot.state == State::coming)
    slot.spans = elsewhere_->fetched(layer);
  else
    std::erase(here_, layer);
  slot.state = State::absent;
  return slot.layout.tensors(std::exchange(slot.spans, {}));
}

int64_t OffloadedActivations::held_bytes() const {
  int64_t bytes = 0;
  for (size_t layer = 0; layer < slots_.size(); ++layer) {
    const Slot& slot = slots_[layer];
    if (slot.state == State::resident || slot.state == State::coming ||
        (slot.state == State::away && elsewhere_->storing(static_cast<int64_t>(layer))))
      bytes += slot.layout.bytes();
  }
  return bytes;
}

int64_t OffloadedActivations::spilled_bytes() const {
  int64_t bytes = 0;
  for (const Slot& slot : slots_)
    if (slot.state == State::away || slot.state == State::coming) bytes += slot.layout.bytes();
  return bytes;
}

}  // namespace trireme
