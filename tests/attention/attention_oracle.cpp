#include "tests/attention/attention_oracle.h"

#include <cmath>

namespace trireme_test {

namespace {

// [S, S], true where a query (row) sees a key (column).
at::Tensor seen(int64_t tokens, int64_t window) {
  at::Tensor mask = at::ones({tokens, tokens}, at::kDouble).tril();
  if (window > 0) mask = mask.triu(1 - window);
  return mask.to(at::kBool);
}

// A matrix product of 16-bit inputs whose result is rounded to their type; sums in fp32, as processors with such
// products have them (libtorch's own, where there are none, are slow).
at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  return at::mm(a.to(at::kFloat), b.to(at::kFloat)).to(a.scalar_type());
}

}  // namespace

OracleResult attention_oracle(const at::Tensor& q_in, const at::Tensor& k_in, const at::Tensor& v_in,
                              const at::Tensor& do_in, double scale, int64_t window,
                              const std::vector<int>& kv_of_query) {
  const at::Tensor q = q_in.to(at::kDouble), k = k_in.to(at::kDouble), v = v_in.to(at::kDouble);
  const at::Tensor d_o = do_in.to(at::kDouble);
  const int64_t batch = q.size(0), tokens = q.size(1), heads = q.size(2);
  OracleResult r{at::zeros_like(q), at::zeros({batch, heads, tokens}, at::kDouble), at::zeros_like(q),
                 at::zeros_like(k), at::zeros_like(v)};
  const at::Tensor hidden = seen(tokens, window).logical_not();
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t kv = kv_of_query[head];
      const at::Tensor q_SD = q[b].select(1, head), do_SD = d_o[b].select(1, head);
      const at::Tensor k_SD = k[b].select(1, kv), v_SD = v[b].select(1, kv);
      const at::Tensor s = (at::mm(q_SD, k_SD.t()) * scale).masked_fill(hidden, -INFINITY);
      const at::Tensor highest = s.amax(1, true);
      const at::Tensor weights = (s - highest).exp();
      const at::Tensor p = weights / weights.sum(1, true);
      r.lse[b][head].copy_((highest + weights.sum(1, true).log()).squeeze(1));
      r.o[b].select(1, head).copy_(at::mm(p, v_SD));
      const at::Tensor dp = at::mm(do_SD, v_SD.t());
      const at::Tensor ds = p * (dp - (p * dp).sum(1, true)) * scale;
      r.dq[b].select(1, head).copy_(at::mm(ds, k_SD));
      r.dk[b].select(1, kv).add_(at::mm(ds.t(), q_SD));
      r.dv[b].select(1, kv).add_(at::mm(p.t(), do_SD));
    }
  return r;
}

OracleResult plain_low_precision(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const at::Tensor& d_o, double scale, int64_t window,
                                 const std::vector<int>& kv_of_query) {
  const at::ScalarType dtype = q.scalar_type();
  const int64_t tokens = q.size(1);
  OracleResult r{at::zeros_like(q),
                 {},
                 at::zeros_like(q),
                 at::zeros(k.sizes(), at::kFloat),
                 at::zeros(v.sizes(), at::kFloat)};
  const at::Tensor hidden = seen(tokens, window).logical_not();
  for (int64_t b = 0; b < q.size(0); ++b)
    for (int64_t head = 0; head < q.size(2); ++head) {
      const int64_t kv = kv_of_query[head];
      const at::Tensor q_SD = q[b].select(1, head), k_SD = k[b].select(1, kv), v_SD = v[b].select(1, kv);
      const at::Tensor do_SD = d_o[b].select(1, head);
      const at::Tensor scores = product(q_SD, k_SD.t()).to(at::kFloat) * scale;
      const at::Tensor p = at::softmax(scores.masked_fill(hidden, -INFINITY), 1);
      const at::Tensor p_low = p.to(dtype);
      const at::Tensor o = product(p_low, v_SD);
      r.o[b].select(1, head).copy_(o);
      const at::Tensor dp = product(do_SD, v_SD.t()).to(at::kFloat);
      const at::Tensor ds = (p * (dp - (p * dp).sum(1, true)) * scale).to(dtype);
      r.dq[b].select(1, head).copy_(product(ds, k_SD));
      r.dk[b].select(1, kv).add_(product(ds.t(), q_SD).to(at::kFloat));
      r.dv[b].select(1, kv).add_(product(p_low.t(), do_SD).to(at::kFloat));
    }
  r.dk = r.dk.to(dtype);
  r.dv = r.dv.to(dtype);
  return r;
}

double relative_error(const at::Tensor& got, const at::Tensor& truth) {
  const at::Tensor wanted = truth.to(at::kDouble);
  if (wanted.numel() == 0) return got.numel() == 0 ? 0 : INFINITY;
  const at::Tensor difference = (got.to(at::kDouble) - wanted).abs();
  if (!difference.isfinite().all().item<bool>()) return INFINITY;
  const double largest = wanted.abs().max().item<double>();
  const double worst = difference.max().item<double>();
  return largest == 0 ? worst : worst / largest;
}

}  // namespace trireme_test
