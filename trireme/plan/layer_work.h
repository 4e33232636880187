// The work of a layer of one kind on this rank's tokens.
#pragma once

#include "trireme/forecast/recompute_plan.h"
#include "trireme/plan/kind_work.h"
#include "trireme/plan/work_counter.h"

namespace trireme {

// `has_o`: attention's output is there already; `keeps`: what is copied for backward.
void count_layer_forward(WorkCounter& count, const KindWork& kind, bool has_o, const SavedSlots& keeps);
// `slots`: what forward kept; the rest is computed again.
void count_layer_backward(WorkCounter& count, const KindWork& kind, const SavedSlots& slots);

}  // namespace trireme
