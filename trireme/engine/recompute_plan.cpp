#include "trireme/engine/recompute_plan.h"

#include <cmath>
#include <initializer_list>

#include "trireme/base/error.h"
#include "trireme/engine/engine_options.h"

namespace trireme {
namespace {

SavedSlots slots(std::initializer_list<SavedSlot> list) {
  SavedSlots set;
  for (const SavedSlot slot : list) set.set(slot);
  return set;
}

}  // namespace

int64_t RecomputePlan::first_layer_of_policy() const {
  return layers - std::llround(keep_fraction * static_cast<double>(layers));
}

SavedSlots RecomputePlan::kept_by_forward(int64_t layer) const {
  SavedSlots kept;
  if (layer >= first_layer_of_policy()) {
    if (policy == Recompute::none) kept.set();
    if (policy == Recompute::keep_attention) kept = slots({kO, kLse});
  }
  kept.set(kX, layer == group_begin(layer));
  return kept;
}

SavedSlots RecomputePlan::kept_by_rerun(int64_t layer) const {
  // With o at hand q, k and v serve backward alone, which projects them when it comes to the layer.
  return kept_by_forward(layer)[kO] ? slots({kX, kX1, kGateUp}) : ~SavedSlots();
}

RecomputePlan make_recompute_plan(Recompute policy, int64_t checkpoint_every, double keep_fraction,
                                  int64_t layers) {
  if (checkpoint_every < 1)
    throw ConfigError(cat("--checkpoint_every ", checkpoint_every,
                          ": expected 1 (each layer keeps its input) or more layers"));
  if (!(keep_fraction >= 0 && keep_fraction <= 1))
    throw ConfigError(cat("--keep_fraction ", keep_fraction, ": expected a part of the layers, from 0 to 1"));
  if (policy == Recompute::none && checkpoint_every > 1)
    throw ConfigError(cat("--checkpoint_every ", checkpoint_every,
                          " means nothing with --recompute none, which runs no layer again; use --recompute "
                          "full or keep_attention, or leave it out"));
  if (policy == Recompute::full && keep_fraction != 1)
    throw ConfigError(cat("--keep_fraction ", keep_fraction,
                          " means nothing with --recompute full, which keeps the same of every layer; use "
                          "--recompute keep_attention or none, or leave it out"));
  return {policy, checkpoint_every, keep_fraction, layers};
}

}  // namespace trireme
