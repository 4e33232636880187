// Sums gradients over ranks. They are sent as reduce_dtype and added up in fp32, in rank order.
#include <cmath>

#include "trireme/comm/collectives.h"
#include "trireme/device/memory_account.h"
#include "trireme/shard/gradient_store.h"
#include "trireme/shard/unit_shares.h"

namespace trireme {

void sum_gradient(Group& group, at::Tensor& gradient, bool shard, at::ScalarType reduce_dtype) {
  if (group.size() == 1) return;
  const MemoryScope scope(MemoryCategory::communication);
  if (!shard && reduce_dtype == gradient.scalar_type()) {
    all_reduce_sum(group, gradient);
    return;
  }
  const at::Tensor share = begin_sum_in_place(group, gradient, reduce_dtype).wait();
  if (!shard) all_gather(group, share, equal_shares(share.size(0), group.size()), gradient);
}

PendingRows begin_sum_in_place(Group& group, at::Tensor& gradient, at::ScalarType reduce_dtype) {
  const UnitShare own = share_of(gradient.size(0), group.size(), group.rank());
  return begin_sum_of_share(group, gradient, reduce_dtype, gradient.narrow(0, own.begin, own.elements));
}

PendingRows begin_sum_of_share(Group& group, const at::Tensor& gradient, at::ScalarType reduce_dtype,
                               at::Tensor output) {
  const MemoryScope scope(MemoryCategory::communication);
  const UnitShare own = share_of(gradient.size(0), group.size(), group.rank());
  return begin_reduce_scatter_sum(group, gradient.to(reduce_dtype), equal_shares(own.elements, group.size()),
                                  gradient.scalar_type(), std::move(output));
}

at::Tensor sum_of_squares(const at::Tensor& values) {
  // ATen adds a whole vector up in fp32, lane by lane: after some 2^23 terms in a lane, more change nothing.
  constexpr int64_t kRow_elements = 4096;
  const int64_t rows = values.numel() / kRow_elements, rest = values.numel() % kRow_elements;
  const auto of_rows = [](const at::Tensor& some_rows) {
    const std::vector<int64_t> along{1};
    return at::linalg_vector_norm(some_rows, 2, along).to(at::kDouble).square().sum();
  };
  at::Tensor sum = at::zeros({}, values.options().dtype(at::kDouble));
  if (rows > 0) sum += of_rows(values.narrow(0, 0, rows * kRow_elements).view({rows, kRow_elements}));
  if (rest > 0) sum += of_rows(values.narrow(0, rows * kRow_elements, rest).view({1, rest}));
  return sum;
}

double gradient_norm(GradientStore& gradients, int units, Group& group) {
  const MemoryScope scope(MemoryCategory::gradients);
  at::Tensor sum = gradients.squares(0).reshape({1}).clone();
  for (int unit = 1; unit < units; ++unit) sum += gradients.squares(unit);
  if (gradients.sharded() && group.size() > 1) all_reduce_sum(group, sum);
  const ActivityWait wait(group.activity());  // the only wait of the host
  return std::sqrt(sum.item<double>());
}

}  // namespace trireme
