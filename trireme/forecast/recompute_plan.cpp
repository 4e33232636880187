#include "trireme/forecast/recompute_plan.h"

#include <cmath>

#include "trireme/base/error.h"

namespace trireme {

int64_t RecomputePlan::first_layer_of_policy() const {
  return layers - std::llround(keep_fraction * static_cast<double>(layers));
}

SavedSlots RecomputePlan::kept_by_forward(int64_t layer) const {
  TRIREME_ASSERT(policy != Recompute::automatic, "a plan was read before --recompute auto was chosen");
  SavedSlots kept;
  if (layer >= first_layer_of_policy()) {
    if (policy == Recompute::none) kept.set();
    if (policy == Recompute::keep_attention) kept.set(kO).set(kLse);
  }
  kept.set(kX, layer == group_begin(layer));
  return kept;
}

SavedSlots RecomputePlan::kept_by_rerun(int64_t layer) const {
  // With o at hand q, k and v serve backward alone, which projects them when it comes to the layer.
  return kept_by_forward(layer)[kO] ? SavedSlots().set(kX).set(kX1).set(kGateUp) : ~SavedSlots();
}

std::string RecomputePlan::description() const {
  std::string text = name_of(policy);
  if (const int64_t first = first_layer_of_policy(); first > 0)
    text += cat(" on ", layers - first, " of ", layers, " layers");
  if (checkpoint_every > 1) text += cat(", inputs of every ", checkpoint_every, " layers");
  return text;
}

}  // namespace trireme
