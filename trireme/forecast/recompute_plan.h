// What each layer's forward keeps for its backward, and which layers' forward runs a second time: a choice of
// slots a layer, read by the layer runner, the model executor and the memory forecast.
//
//   slot      shape            part
//   kX        [B s, M]         where a group starts
//   kO        [B, s, H, D]     attention
//   kLse      [B, h, S]        attention
//   kQkv      [B, S, h+2k, D]  qkv
//             with head chunks [B, s, H+2K, D]
//   kGate     [B s, A]         qkv, or with kO where the layer runs forward again; of models whose attention's
//                              output is gated
//   kOHeads   [B, S, h, D]     attention and qkv together; never on one Ulysses rank, where it is kO, and
//                              with head chunks
//   kX1       [B s, M]         mlp
//   kGateUp   [B s, 2 I]       mlp
//             [B s, ModelConfig::mlp_kept_width] of others, see their family
//
// Each part is kept by as many of the last layers as the plan says. kX1 and kGateUp have the dtype of the
// matmuls, so that keeping them rounds nothing; kLse is fp32; all others have the storage dtype. The layers
// are cut into groups of `checkpoint_every`. Backward of a group runs its layers but the last forward again
// from the group's kept input, for the next layers' kX alone; kO and kLse of attention that had to run again
// stay too, so that no attention runs more than twice in a step. Then each layer goes back from its kX (and
// what else was kept), as with groups of one layer, where nothing runs ahead.
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
  automatic,       // until it is chosen: what is worth most on as many layers as fit, see choose_recompute.h
};
constexpr auto enum_names(Recompute) {
  using enum Recompute;
  return std::to_array<EnumName<Recompute>>(
      {{automatic, "auto"}, {none, "none"}, {keep_attention, "keep_attention"}, {full, "full"}});
}

// Slots of Saved.
enum SavedSlot : std::size_t { kX, kO, kLse, kQkv, kGate, kOHeads, kX1, kGateUp, kSavedSlotCount };
using SavedSlots = std::bitset<kSavedSlotCount>;

// What a layer's forward may keep beside its input.
enum class KeptPart : uint8_t {
  attention,  // its output and log-sum-exp
  qkv,        // q, k and v, rotated and exchanged: what attention's backward reads
  mlp,        // the input of the MLP's norm (or what it is made of) and gate|up
};
constexpr auto enum_names(KeptPart) {
  using enum KeptPart;
  return std::to_array<EnumName<KeptPart>>({{attention, "attention"}, {qkv, "qkv"}, {mlp, "mlp"}});
}
inline constexpr KeptPart kAllKeptParts[] = {KeptPart::attention, KeptPart::qkv, KeptPart::mlp};

struct RecomputePlan {
  Recompute policy{};            // of the last layers, as many as keep_fraction says; the others: full
  int64_t checkpoint_every = 1;  // layers of a group
  double keep_fraction = 1;
  int64_t layers = 0;
  // With keep_attention: shares of the layers, the last ones, that keep these parts, whatever keep_fraction
  // says.
  double keep_qkv_fraction = 0;
  double keep_mlp_fraction = 0;

  bool keeps_qkv_or_mlp() const { return keep_qkv_fraction > 0 || keep_mlp_fraction > 0; }
  // What may stand with groups of several layers, and with offload of what layers keep.
  bool keeps_attention_at_most() const { return policy != Recompute::none && !keeps_qkv_or_mlp(); }
  // The last ones.
  int64_t layers_keeping(KeptPart part) const;
  // First layer of this one's group.
  int64_t group_begin(int64_t layer) const { return layer - layer % checkpoint_every; }
  bool is_last_of_group(int64_t layer) const {
    return layer + 1 == layers || group_begin(layer + 1) == layer + 1;
  }

  SavedSlots kept_by_forward(int64_t layer) const;
  // By the second forward of a layer that is not its group's last.
  SavedSlots kept_by_rerun(int64_t layer) const;

  // "keep_attention on 20 of 32 layers, inputs of every 2 layers"; "keep_attention on 32, qkv on 32, mlp on
  // 20 of 32 layers"
  std::string description() const;
  bool operator==(const RecomputePlan&) const = default;
};

// Options of train that set a plan's shares; where they are not given, train takes a new plan's values.
struct KeptShareOption {
  const char* name;
  double RecomputePlan::*share;
};
inline constexpr KeptShareOption kKeptShareOptions[] = {
    {"keep_fraction", &RecomputePlan::keep_fraction},
    {"keep_qkv_fraction", &RecomputePlan::keep_qkv_fraction},
    {"keep_mlp_fraction", &RecomputePlan::keep_mlp_fraction}};

// What is given to a run with the policy and shares of `before` so that it has those of `then`:
// "--recompute keep_attention --keep_fraction 0.5". Groups of layers are not told.
std::string recompute_flags(const RecomputePlan& before, const RecomputePlan& then);

// How many of the last layers keep each part.
struct KeptLayers {
  int64_t attention = 0;
  int64_t qkv = 0;
  int64_t mlp = 0;

  int64_t& operator[](KeptPart part) {
    return part == KeptPart::attention ? attention : part == KeptPart::qkv ? qkv : mlp;
  }
  bool operator==(const KeptLayers&) const = default;
};
// By the plainest policy that keeps so much.
RecomputePlan plan_keeping(KeptLayers kept, int64_t checkpoint_every, int64_t layers);

}  // namespace trireme
