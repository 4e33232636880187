#include "trireme/forecast/recompute_plan.h"

#include <cmath>

#include "trireme/base/error.h"

namespace trireme {

int64_t RecomputePlan::layers_keeping(KeptPart part) const {
  const auto share = [&](double fraction) { return std::llround(fraction * static_cast<double>(layers)); };
  switch (policy) {
    case Recompute::full:
      return 0;
    case Recompute::none:
      return share(keep_fraction);
    case Recompute::keep_attention:
      return share(part == KeptPart::attention ? keep_fraction
                   : part == KeptPart::qkv     ? keep_qkv_fraction
                                               : keep_mlp_fraction);
    case Recompute::automatic:
      break;
  }
  throw InternalError("a plan was read before --recompute auto was chosen");
}

SavedSlots RecomputePlan::kept_by_forward(int64_t layer) const {
  const auto keeps = [&](KeptPart part) { return layer >= layers - layers_keeping(part); };
  const bool attention = keeps(KeptPart::attention), qkv = keeps(KeptPart::qkv), mlp = keeps(KeptPart::mlp);
  SavedSlots kept;
  kept.set(kX, layer == group_begin(layer));
  kept.set(kO, attention).set(kLse, attention);
  // Without attention's output its second forward leaves o by heads.
  kept.set(kQkv, qkv).set(kOHeads, qkv && attention);
  // A second forward that has o makes no projection, which the gate comes from.
  kept.set(kGate, qkv || (attention && !is_last_of_group(layer)));
  kept.set(kX1, mlp).set(kGateUp, mlp);
  return kept;
}

SavedSlots RecomputePlan::kept_by_rerun(int64_t layer) const {
  const bool attends = !kept_by_forward(layer)[kO];
  return SavedSlots().set(kX).set(kO, attends).set(kLse, attends);
}

std::string RecomputePlan::description() const {
  std::string text = name_of(policy);
  const auto on = [&](KeptPart part) { return cat(" on ", layers_keeping(part)); };
  const std::string of_layers = cat(" of ", layers, " layers");
  if (keeps_qkv_or_mlp()) {
    text += on(KeptPart::attention);
    for (const KeptPart part : {KeptPart::qkv, KeptPart::mlp}) text += cat(", ", name_of(part), on(part));
    text += of_layers;
  } else if (policy != Recompute::full && layers_keeping(KeptPart::attention) < layers) {
    text += on(KeptPart::attention) + of_layers;
  }
  if (checkpoint_every > 1) text += cat(", inputs of every ", checkpoint_every, " layers");
  return text;
}

std::string recompute_flags(const RecomputePlan& before, const RecomputePlan& then) {
  std::string text = cat("--recompute ", name_of(then.policy));
  const RecomputePlan unless_given;
  constexpr double kShareSteps = 1e4;  // enough to tell the layers of any model
  for (const auto& [name, share] : kKeptShareOptions) {
    const double value = then.*share;
    // What `auto` chose is in no option of the run, so what is unusual is told in any case.
    if (value == unless_given.*share && value == before.*share) continue;
    text += cat(" --", name, " ", std::round(value * kShareSteps) / kShareSteps);
  }
  return text;
}

RecomputePlan plan_keeping(KeptLayers kept, int64_t checkpoint_every, int64_t layers) {
  const auto share = [&](int64_t keeping) {
    return static_cast<double>(keeping) / static_cast<double>(layers);
  };
  if (kept == KeptLayers{}) return {Recompute::full, checkpoint_every, 1, layers};
  if (kept.attention == kept.qkv && kept.qkv == kept.mlp)
    return {Recompute::none, checkpoint_every, share(kept.attention), layers};
  return {Recompute::keep_attention, checkpoint_every, share(kept.attention), layers,
          share(kept.qkv),           share(kept.mlp)};
}

}  // namespace trireme
