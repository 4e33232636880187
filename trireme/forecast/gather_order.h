// The units of one pass over the model (unit_numbers.h) in the order in which forward and backward gather their
// parameters.
#pragma once

#include <vector>

#include "trireme/forecast/recompute_plan.h"
#include "trireme/model/unit_numbers.h"

namespace trireme {

// How the units beside the layers are used.
struct EndUnits {
  bool tied = false;  // the head uses the embedding's matrix
  bool embedding_read_backward = false;
  bool layer_inputs = false;
  bool trained = true;  // else no values are gathered behind the layers (LoRA)
  int layer_unit(int64_t layer) const { return trireme::layer_unit(layer, layer_inputs); }
};

// All, in the order of their numbers (and the embedding's matrix again when tied).
std::vector<int> forward_order(int64_t layers, const EndUnits& ends);
// The same, then group by group from the last: its layers but the last forward, then all of them back; layers'
// inputs; the embedding where its backward reads it.
std::vector<int> training_order(const RecomputePlan& plan, const EndUnits& ends);

}  // namespace trireme
