// The units of one pass over the model in the order in which forward and backward gather their parameters.
// Unit 0 is the embedding, then come the layers, then the head.
#pragma once

#include <vector>

#include "trireme/forecast/recompute_plan.h"

namespace trireme {

// embedding, layers, head (with the embedding's matrix when tied)
std::vector<int> forward_order(int64_t layers, bool tied);
// The same, then group by group from the last: its layers but the last forward, then all of them back; the
// embedding where its backward reads it.
std::vector<int> training_order(const RecomputePlan& plan, bool tied, bool embedding_read_backward);

}  // namespace trireme
