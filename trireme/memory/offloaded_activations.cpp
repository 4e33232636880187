// Keeps the saved tensors of a few layers in memory and the others elsewhere. The caller puts layers in
// ascending order and takes them in descending order:
//
//   put(n)    n stays; n - resident_layers starts to leave, once fewer than leaving_layers others are leaving
//   take(n)   the next ahead_layers below n that were put start to come back; waits for n
//
// The tensors taken are bitwise the tensors put, so results are bitwise the same as without offloading.
#include <deque>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/device/memory_account.h"
#include "trireme/memory/make_activation_store.h"
#include "trireme/memory/saved_spans.h"

namespace trireme {
namespace {

class OffloadedActivations final : public ActivationStore {
 public:
  OffloadedActivations(int64_t layers, std::unique_ptr<SpanStorage> elsewhere, const ResidentLayers& resident)
      : resident_(resident), slots_(static_cast<size_t>(layers)), elsewhere_(std::move(elsewhere)) {
    TRIREME_ASSERT(resident.resident_layers >= 0 && resident.leaving_layers >= 1 &&
                   resident.ahead_layers >= 0);
  }

  // DataError when there is no room elsewhere or an earlier layer could not be written; ConfigError beyond a
  // limit. `layer` is put all the same. Every layer put can be taken, except one not written.
  void put(int64_t layer, Saved saved) override {
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
  // DataError when the layer, or one that begins to come back, could not be written or read.
  Saved take(int64_t layer) override {
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

 private:
  enum class State { absent, resident, away, coming };
  struct Slot {
    State state = State::absent;
    SavedLayout layout;
    std::vector<at::Tensor> spans;  // while resident
  };
  Slot& slot(int64_t layer) { return slots_.at(static_cast<size_t>(layer)); }

  void send_oldest_away() {
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
  void begin_fetch(int64_t layer) {
    if (std::erase(leaving_, layer) > 0) elsewhere_->stored(layer);
    elsewhere_->fetch(layer);
    slot(layer).state = State::coming;
  }

  const ResidentLayers resident_;
  std::vector<Slot> slots_;
  std::deque<int64_t> here_;     // resident layers, in the order in which they were put
  std::deque<int64_t> leaving_;  // layers sent away, their memory perhaps still in use
  std::unique_ptr<SpanStorage> elsewhere_;
};

}  // namespace

std::unique_ptr<ActivationStore> make_offloaded_activations(int64_t layers,
                                                            std::unique_ptr<SpanStorage> elsewhere,
                                                            const ResidentLayers& resident) {
  return std::make_unique<OffloadedActivations>(layers, std::move(elsewhere), resident);
}

}  // namespace trireme
