#include "trireme/forecast/gather_order.h"

#include <numeric>

namespace trireme {

std::vector<int> forward_order(int64_t layers, const EndUnits& ends) {
  std::vector<int> units(static_cast<size_t>(ends.layer_unit(layers)) + 1);
  std::iota(units.begin(), units.end(), 0);
  if (ends.tied) units.push_back(kEmbeddingUnit);
  return units;
}

std::vector<int> training_order(const RecomputePlan& plan, const EndUnits& ends) {
  std::vector<int> units = forward_order(plan.layers, ends);
  const auto add_layer = [&](int64_t layer) { units.push_back(ends.layer_unit(layer)); };
  for (int64_t end = plan.layers; end > 0; end = plan.group_begin(end - 1)) {
    const int64_t begin = plan.group_begin(end - 1);
    for (int64_t layer = begin; layer + 1 < end; ++layer) add_layer(layer);
    for (int64_t layer = end - 1; layer >= begin; --layer) add_layer(layer);
  }
  if (!ends.trained) return units;
  if (ends.layer_inputs) units.push_back(kLayerInputsUnit);
  if (ends.embedding_read_backward) units.push_back(kEmbeddingUnit);
  return units;
}

}  // namespace trireme
