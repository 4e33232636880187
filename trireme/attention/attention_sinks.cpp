#include "trireme/attention/attention_sinks.h"

#include <limits>
#include <utility>

#include "trireme/base/error.h"

namespace trireme {

namespace {

constexpr int64_t kRows = 1024;  // of queries at a time: what is made in fp32 stays small

// For differences from it: where a query saw neither key nor sink, every probability is to be zero.
at::Tensor without_infinity(const at::Tensor& lse) {
  return lse.masked_fill(lse.eq(-std::numeric_limits<double>::infinity()), 0);
}

}  // namespace

AttentionWithSinks::AttentionWithSinks(std::unique_ptr<SequenceAttention> keys, at::Tensor sinks_H)
    : keys_(std::move(keys)), sinks_H_(std::move(sinks_H)) {}

std::string AttentionWithSinks::name() const {
  return cat("sinks over ", keys_->name());
}

AttentionOutput AttentionWithSinks::forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                            const SequenceSpec& spec) {
  const at::NoGradGuard no_grad;
  TRIREME_ASSERT(sinks_H_.dim() == 1 && sinks_H_.size(0) == q.size(2), "got sinks ", sinks_H_.sizes(),
                 " for ", q.size(2), " query heads");
  AttentionOutput out = keys_->forward(q, k, v, spec);
  const at::Tensor lse = at::logaddexp(out.lse, sinks_H_.to(out.lse.scalar_type()).unsqueeze(1));
  const at::Tensor kept_BnH1 = (out.lse - without_infinity(lse)).exp_().transpose(1, 2).unsqueeze(3);
  for (int64_t row = 0; row < q.size(1); row += kRows)
    out.o.slice(1, row, row + kRows).mul_(kept_BnH1.slice(1, row, row + kRows));
  return {std::move(out.o), lse};
}

AttentionGradients AttentionWithSinks::backward(const at::Tensor& d_o, const at::Tensor& q,
                                                const at::Tensor& k, const at::Tensor& v,
                                                const AttentionOutput& saved, const SequenceSpec& spec) {
  const at::NoGradGuard no_grad;
  const auto compute = saved.lse.scalar_type();
  const at::Tensor sinks = sinks_H_.to(compute);
  const at::Tensor lse_BnH = without_infinity(saved.lse).transpose(1, 2);
  d_sinks_H_ = at::zeros_like(sinks);
  for (int64_t row = 0; row < q.size(1); row += kRows) {
    const auto rows = [row](const at::Tensor& x) { return x.slice(1, row, row + kRows); };
    const at::Tensor delta_BnH = (rows(d_o).to(compute) * rows(saved.o)).sum(3);
    d_sinks_H_.sub_(((sinks - rows(lse_BnH)).exp_() * delta_BnH).sum(at::IntArrayRef{0, 1}));
  }
  return keys_->backward(d_o, q, k, v, saved, spec);
}

}  // namespace trireme
