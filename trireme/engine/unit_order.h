// Gathers the units of one pass over the model in the order of forecast/gather_order.h: gathering one lets
// the parameter store begin the next, and what it needs earlier for the one after that.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "trireme/model/model_layout.h"
#include "trireme/shard/parameter_store.h"

namespace trireme {

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
