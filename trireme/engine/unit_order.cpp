#include "trireme/engine/unit_order.h"

#include "trireme/base/error.h"

namespace trireme {

at::Tensor UnitOrder::gather(int unit) {
  TRIREME_ASSERT(at_ < units_.size() && units_[at_] == unit, "unit ", unit, " was gathered as number ", at_,
                 " of ", units_.size());
  at::Tensor flat = parameters_.gather(unit);
  if (++at_ < units_.size()) parameters_.prefetch(units_[at_]);
  // After that: what the next unit waits for is not to come behind this.
  if (at_ + 1 < units_.size()) parameters_.prefetch_later(units_[at_ + 1]);
  return flat;
}

}  // namespace trireme
