// Keeps few layers' saved tensors in memory and the others elsewhere, for a walk that puts layers in ascending
// order and takes them in descending order:
//
//   put(n)    n stays; n - resident_layers begins to leave, once no more than leaving_layers others are leaving
//   take(n)   the next ahead_layers below n that were put begin to come back; waits for n
//
// What comes back is bitwise what was put, so results are bitwise those of not offloading.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "trireme/memory/activation_store.h"
#include "trireme/memory/resident_layers.h"
#include "trireme/memory/saved_spans.h"
#include "trireme/memory/span_storage.h"

namespace trireme {

class OffloadedActivations final : public ActivationStore {
 public:
  OffloadedActivations(int64_t layers, std::unique_ptr<SpanStorage> elsewhere,
                       const ResidentLayers& resident = {});

  // DataError when there is no room elsewhere or an earlier layer could not be written, ConfigError beyond a
  // limit; `layer` is put all the same, and what was put can be taken, but for what could not be written.
  void put(int64_t layer, Saved saved) override;
  // DataError when the layer, or one that begins to come back, could not be written or read.
  Saved take(int64_t layer) override;
  int64_t held_bytes() const override;
  int64_t spilled_bytes() const override;

 private:
  enum class State { absent, resident, away, coming };
  struct Place {
    State state = State::absent;
    SavedLayout layout;
    std::vector<at::Tensor> spans;  // while resident
  };
  Place& place(int64_t layer) { return places_.at(static_cast<size_t>(layer)); }
  void send_oldest_away();
  void begin_fetch(int64_t layer);

  const ResidentLayers resident_;
  std::vector<Place> places_;
  std::deque<int64_t> here_;     // resident layers, in the order in which they were put
  std::deque<int64_t> leaving_;  // away, their memory perhaps still in use
  std::unique_ptr<SpanStorage> elsewhere_;
};

}  // namespace trireme
