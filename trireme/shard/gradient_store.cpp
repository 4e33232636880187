#include "trireme/shard/gradient_store.h"

#include "trireme/comm/collectives.h"

namespace trireme {

ReplicatedGradients::ReplicatedGradients(const std::vector<FlatUnit>& units, Group& group, at::Device device)
    : group_(group) {
  for (const FlatUnit& unit : units)
    gradients_.push_back(at::zeros({unit.elements}, at::TensorOptions().dtype(at::kFloat).device(device)));
}

at::Tensor ReplicatedGradients::open(int unit) {
  return gradients_.at(static_cast<size_t>(unit));
}

void ReplicatedGradients::finish() {
  for (at::Tensor& gradient : gradients_) all_reduce_sum(group_, gradient);
}

at::Tensor ReplicatedGradients::summed(int unit) {
  return gradients_.at(static_cast<size_t>(unit));
}

void ReplicatedGradients::clear() {
  for (at::Tensor& gradient : gradients_) gradient.zero_();
}

int64_t ReplicatedGradients::bytes() const {
  int64_t bytes = 0;
  for (const at::Tensor& gradient : gradients_) bytes += static_cast<int64_t>(gradient.nbytes());
  return bytes;
}

}  // namespace trireme
