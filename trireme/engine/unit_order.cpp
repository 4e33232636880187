#include "trireme/engine/unit_order.h"

#include "trireme/base/error.h"

namespace trireme {

std::vector<int> forward_order(const ModelLayout& layout) {
  std::vector<int> units;
  for (int unit = layout.embedding_unit(); unit <= layout.head_unit(); ++unit) units.push_back(unit);
  if (layout.tied) units.push_back(layout.embedding_unit());
  return units;
}

std::vector<int> training_order(const ModelLayout& layout, const RecomputePlan& plan) {
  std::vector<int> units = forward_order(layout);
  for (int64_t end = plan.layers; end > 0; end = plan.group_begin(end - 1)) {
    const int64_t begin = plan.group_begin(end - 1);
    for (int64_t layer = begin; layer + 1 < end; ++layer) units.push_back(layout.layer_unit(layer));
    for (int64_t layer = end - 1; layer >= begin; --layer) units.push_back(layout.layer_unit(layer));
  }
  if (layout.embedding_read_backward) units.push_back(layout.embedding_unit());
  return units;
}

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
