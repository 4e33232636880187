// Keeps the saved tensors of a few layers in memory and the others elsewhere. The caller puts layers in
// ascending order and takes them in descending order:
//
//   put(n)    n stays; n - resident_layers starts to leave, once fewer than leaving_layers others are leaving
//   take(n)   the next ahead_layers below n that were put start to come back; waits for n
//
// The tensors taken are bitwise the tensors put, so results are bitwise the same as without offloading.
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

  // DataError when there is no room elsewhere or an earlier layer could not be written; ConfigError beyond a
  // limit. `layer` is put all the same. Every layer put can be taken, except one not written.
  void put(int64_t layer, Saved saved) override;
  // DataError when the layer, or one that begins to come back, could not be written or read.
  Saved take(int64_t layer) override;
  int64_t held_bytes() const override;
  int64_t spilled_bytes() const override;

 private:
  enum class State { absent, resident, away, coming };
  struct Slot {
    State state = State::absent;
    SavedLayout layout;
    std::vector<at::Tensor> spans;  // while resident
  };
  Slot& slot(int64_t layer) { return slots_.at(static_cast<size_t>(layer)); }
  void send_oldest_away();
  void begin_fetch(int64_t layer);

  const ResidentLayers resident_;
  std::vector<Slot> slots_;
  std::deque<int64_t> here_;     // resident layers, in the order in which they were put
  std::deque<int64_t> leaving_;  // layers sent away, their memory perhaps still in use
  std::unique_ptr<SpanStorage> elsewhere_;
};

}  // namespace trireme
