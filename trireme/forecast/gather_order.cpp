#include "trireme/forecast/gather_order.h"

#include <algorithm>
#include <numeric>

namespace trireme {
namespace {

constexpr int kEmbedding = 0;
int unit_of(int64_t layer) {
  return static_cast<int>(1 + layer);
}
int head_of(int64_t layers) {
  return unit_of(layers);
}
int layer_inputs_of(int64_t layers) {
  return head_of(layers) + 1;
}

}  // namespace

std::vector<int> forward_order(int64_t layers, const EndUnits& ends) {
  std::vector<int> units{kEmbedding};
  if (ends.layer_inputs) units.push_back(layer_inputs_of(layers));
  for (int64_t layer = 0; layer < layers; ++layer) units.push_back(unit_of(layer));
  units.push_back(head_of(layers));
  if (ends.tied) units.push_back(kEmbedding);
  return units;
}

std::vector<int> training_order(const RecomputePlan& plan, const EndUnits& ends) {
  std::vector<int> units = forward_order(plan.layers, ends);
  for (int64_t end = plan.layers; end > 0; end = plan.group_begin(end - 1)) {
    const int64_t begin = plan.group_begin(end - 1);
    for (int64_t layer = begin; layer + 1 < end; ++layer) units.push_back(unit_of(layer));
    for (int64_t layer = end - 1; layer >= begin; --layer) units.push_back(unit_of(layer));
  }
  if (!ends.trained) return units;
  if (ends.layer_inputs) units.push_back(layer_inputs_of(plan.layers));
  if (ends.embedding_read_backward) units.push_back(kEmbedding);
  return units;
}

std::vector<int> closing_order(size_t units, bool layer_inputs) {
  std::vector<int> order(units);
  std::iota(order.rbegin(), order.rend(), 0);
  if (layer_inputs) std::rotate(order.begin(), order.begin() + 1, order.end() - 1);
  return order;
}

}  // namespace trireme
