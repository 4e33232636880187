#include "trireme/shard/parameter_store.h"

#include <utility>

namespace trireme {

ReplicatedParameters::ReplicatedParameters(std::vector<at::Tensor> masters, at::ScalarType compute_dtype)
    : masters_(std::move(masters)) {
  for (const at::Tensor& master : masters_) compute_.push_back(master.to(compute_dtype));
}

at::Tensor ReplicatedParameters::gather(int unit) {
  return compute_.at(static_cast<size_t>(unit));
}

at::Tensor ReplicatedParameters::master(int unit) {
  return masters_.at(static_cast<size_t>(unit));
}

void ReplicatedParameters::masters_changed(int unit) {
  const auto at = static_cast<size_t>(unit);
  if (compute_.at(at).data_ptr() != masters_.at(at).data_ptr()) compute_[at].copy_(masters_[at]);
}

int64_t ReplicatedParameters::bytes() const {
  int64_t bytes = 0;
  for (size_t at = 0; at < masters_.size(); ++at) {
    bytes += static_cast<int64_t>(masters_[at].nbytes());
    if (compute_[at].data_ptr() != masters_[at].data_ptr())
      bytes += static_cast<int64_t>(compute_[at].nbytes());
  }
  return bytes;
}

}  // namespace trireme
