// The units of one pass over the model in the order in which the walk gathers them: gathering one lets the
// parameter store begin the next, and what it needs earlier for the one after that.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "trireme/engine/recompute_plan.h"
#include "trireme/model/parameter_layout.h"
#include "trireme/shard/parameter_store.h"

namespace trireme {

// embedding, layers, head (with the embedding's matrix when tied)
std::vector<int> forward_order(const ModelLayout& layout);
// The same, then group by group from the last: its layers but the last forward, then all of them back; the
// embedding where its backward reads it.
std::vector<int> training_order(const ModelLayout& layout, const RecomputePlan& plan);

class UnitOrder {
 public:
  UnitOrder(ParameterStore& parameters, std::vector<int> units)
      : parameters_(parameters), units_(std::move(units)) {}

  // The unit's flat values until release; InternalError when it is not the next in order. Collective as the
  // store's gather.
  at::Tensor gather(int unit);
  void release(int unit) { parameters_.release(unit); }

 private:
  ParameterStore& parameters_;
  std::vector<int> units_;
  size_t at_ = 0;
};

}  // namespace trireme
