// Sums of gradients over ranks: what travels has reduce_dtype, what is summed is fp32, in rank order.
#include <cmath>

#include "trireme/comm/collectives.h"
#include "trireme/device/memory_account.h"
#include "trireme/shard/gradient_store.h"
#include "trireme/shard/unit_shares.h"

namespace trireme {

at::Tensor sum_gradient(Group& group, at::Tensor& gradient, bool shard, at::ScalarType reduce_dtype) {
  if (group.size() == 1) return gradient;
  const MemoryScope scope(MemoryCategory::communication);
  const bool narrow = reduce_dtype != gradient.scalar_type();
  if (!shard && !narrow) {
    all_reduce_sum(group, gradient);
    return gradient;
  }
  const std::vector<int64_t> shares = share_sizes(gradient.size(0), group.size());
  at::Tensor share = reduce_scatter_sum(group, gradient.to(reduce_dtype), shares, gradient.scalar_type());
  if (shard) return share;
  gradient.copy_(all_gather(group, share, shares));
  return gradient;
}

double gradient_norm(GradientStore& gradients, int units, Group& group) {
  double sum = 0;
  for (int unit = 0; unit < units; ++unit) {
    const at::Tensor gradient = gradients.summed(unit);
    if (gradient.numel() == 0) continue;
    const double norm = at::linalg_vector_norm(gradient, 2).item<double>();
    sum += norm * norm;
  }
  if (gradients.sharded() && group.size() > 1) {
    at::Tensor total = at::full({1}, sum, at::TensorOptions().dtype(at::kDouble).device(gradients.device()));
    all_reduce_sum(group, total);
    sum = total.item<double>();
  }
  return std::sqrt(sum);
}

}  // namespace trireme
