// What each layer's forward keeps for its backward, and which layers' forward runs a second time: a choice of
// slots a layer, read by the layer runner, the model executor and the memory forecast.
//
//   slot      shape            kept by forward                    kept by a second forward
//   kX        [B s, M]         where a group starts               always
//   kO        [B, s, H, D]     keep_attention, none               where the first did not keep kO
//   kLse      [B, h, S]        keep_attention, none               where the first did not keep kO
//   kQkv      [B, S, h+2k, D]  none                               where the first did not keep kO
//             with head chunks [B, s, H+2K, D]
//   kOHeads   [B, S, h, D]     none; never on one Ulysses rank,   as kQkv
//                              where it is kO, and with head chunks
//   kX1       [B s, M]         none                               always
//   kGateUp   [B s, 2 I]       none                               always
//             of encoders [B s, I + M], see their family
//
// kX1 and kGateUp have the dtype of the matmuls, so that keeping them rounds nothing; kLse is fp32; all
// others have the storage dtype. The layers are cut into groups of `checkpoint_every`. Backward of a group
// runs its layers but the last forward again from the group's kept input; the last goes back from its input
// (and kO, kLse if kept), so that no forward matmul runs more than twice in a step. With groups of one layer
// nothing runs ahead.
// Gradient checkpointing: arXiv 1604.06174.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <string>

#include "trireme/base/enum_names.h"

namespace trireme {

enum class Recompute {
  full,            // keep each layer's input
  keep_attention,  // also the attention output and its log-sum-exp: backward never repeats attention forward
  none,            // keep all that backward reads
  automatic,       // keep_attention on as many layers as fit, see choose_recompute.h; no plan has it
};
constexpr auto enum_names(Recompute) {
  using enum Recompute;
  return std::to_array<EnumName<Recompute>>(
      {{automatic, "auto"}, {none, "none"}, {keep_attention, "keep_attention"}, {full, "full"}});
}

// Slots of Saved.
enum SavedSlot : std::size_t { kX, kO, kLse, kQkv, kOHeads, kX1, kGateUp, kSavedSlotCount };
using SavedSlots = std::bitset<kSavedSlotCount>;

struct RecomputePlan {
  Recompute policy{};            // of the last layers, as many as keep_fraction says; the others: full
  int64_t checkpoint_every = 1;  // layers of a group
  double keep_fraction = 1;
  int64_t layers = 0;

  // Layers before this one keep no more than their input, or the input of their group.
  int64_t first_layer_of_policy() const;
  // First layer of this one's group.
  int64_t group_begin(int64_t layer) const { return layer - layer % checkpoint_every; }

  SavedSlots kept_by_forward(int64_t layer) const;
  // Beside those, when a layer that is not its group's last runs again.
  SavedSlots kept_by_rerun(int64_t layer) const;

  // "keep_attention on 20 of 32 layers, inputs of every 2 layers"
  std::string description() const;
  bool operator==(const RecomputePlan&) const = default;
};

}  // namespace trireme
