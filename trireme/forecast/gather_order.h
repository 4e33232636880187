// The units of one pass over the model in the order in which forward and backward gather their parameters. Unit 0
// is the embedding, then come layers' inputs where the model has some, the layers, and the head.
#pragma once

#include <vector>

#include "trireme/forecast/recompute_plan.h"

namespace trireme {

// How the units beside the layers are used.
struct EndUnits {
  bool tied = false;  // the head uses the embedding's matrix
  bool embedding_read_backward = false;
  bool layer_inputs = false;
  bool trained = true;  // else nothing goes back behind the layers (LoRA)
  int first_layer() const { return layer_inputs ? 2 : 1; }
};

// All, in the order of their numbers (and the embedding's matrix again when tied).
std::vector<int> forward_order(int64_t layers, const EndUnits& ends);
// The same, then group by group from the last: its layers but the last forward, then all of them back; layers'
// inputs; the embedding where its backward reads it.
std::vector<int> training_order(const RecomputePlan& plan, const EndUnits& ends);

}  // namespace trireme
