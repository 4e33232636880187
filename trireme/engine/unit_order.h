// Gathers the units of one pass over the model in the order of forecast/gather_order.h: gathering one lets
// the parameter store begin the next, and what it needs earlier for the one after that.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "trireme/base/error.h"
#include "trireme/shard/parameter_store.h"

namespace trireme {

class UnitOrder {
 public:
  UnitOrder(ParameterStore& parameters, std::vector<int> units)
      : parameters_(parameters), units_(std::move(units)) {}

  // The unit's flat values until release; InternalError when it is not the next in order. Collective as the
  // store's gather.
  at::Tensor gather(int unit) {
    TRIREME_ASSERT(at_ < units_.size() && units_[at_] == unit, "unit ", unit, " was gathered as number ", at_,
                   " of ", units_.size());
    at::Tensor flat = parameters_.gather(unit);
    if (++at_ < units_.size()) parameters_.prefetch(units_[at_]);
    // After that: what the next unit waits for is not to come behind this.
    if (at_ + 1 < units_.size()) parameters_.prefetch_later(units_[at_ + 1]);
    return flat;
  }
  void release(int unit) { parameters_.release(unit); }

 private:
  ParameterStore& parameters_;
  std::vector<int> units_;
  size_t at_ = 0;
};

}  // namespace trireme
