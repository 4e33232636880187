#include "tests/kernels/attention_oracle.h"

#include <cmath>

namespace trireme_test {

namespace {

// A matrix product of 16-bit inputs whose result is rounded to their type; sums in fp32, as processors with
// such products have them (libtorch's own, where there are none, are slow).
at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  return at::mm(a.to(at::kFloat), b.to(at::kFloat)).to(a.scalar_type());
}

at::Tensor capped(const at::Tensor& scores, double cap) {
  return cap > 0 ? at::tanh(scores / cap) * cap : scores;
}
// d(cap tanh(s / cap)) / ds
at::Tensor slope(const at::Tensor& scores, double cap) {
  return cap > 0 ? at::cosh(scores / cap).pow(-2) : at::ones_like(scores);
}

at::Tensor kept_blocks(const OracleMask& mask, const at::Tensor& query, const at::Tensor& key) {
  const at::Tensor i = query.div(mask.block_tokens, "floor"), j = key.div(mask.block_tokens, "floor");
  at::Tensor kept = (i - j).abs().lt(mask.local_blocks).logical_or(j.lt(mask.global_blocks));
  if (mask.stride_blocks > 0) kept = kept.logical_or((j + 1).remainder(mask.stride_blocks).eq(0));
  if (!mask.causal) kept = kept.logical_or(i.lt(mask.global_blocks));
  return kept;
}

}  // namespace

SeenKeys seen_keys(const OracleMask& mask, int64_t batch, int64_t tokens) {
  const at::Tensor query = at::arange(tokens, at::kLong).unsqueeze(1);
  const at::Tensor key = at::arange(tokens, at::kLong).unsqueeze(0);
  at::Tensor all = mask.causal ? key.le(query) : at::ones({tokens, tokens}, at::kBool);
  if (mask.window > 0) all = all.logical_and((query - key).abs().lt(mask.window));
  if (mask.block_tokens > 0) all = all.logical_and(kept_blocks(mask, query, key));
  SeenKeys seen;
  seen.reserve(batch);
  for (int64_t b = 0; b < batch; ++b) {
    if (mask.document_of_token.empty()) {
      seen.push_back(all);
      continue;
    }
    const at::Tensor document = at::tensor(mask.document_of_token.at(b), at::kLong);
    seen.push_back(all.logical_and(document.unsqueeze(1).eq(document.unsqueeze(0))));
  }
  return seen;
}

OracleResult attention_oracle(const at::Tensor& q_in, const at::Tensor& k_in, const at::Tensor& v_in,
                              const at::Tensor& do_in, double scale, const SeenKeys& seen,
                              const std::vector<int>& kv_of_query, at::ScalarType kept_o, double cap) {
  const at::Tensor q = q_in.to(at::kDouble), k = k_in.to(at::kDouble), v = v_in.to(at::kDouble);
  const at::Tensor d_o = do_in.to(at::kDouble);
  const int64_t batch = q.size(0), tokens = q.size(1), heads = q.size(2);
  OracleResult r{at::zeros_like(q), at::full({batch, heads, tokens}, -INFINITY, at::kDouble),
                 at::zeros_like(q), at::zeros_like(k), at::zeros_like(v)};
  if (k.size(1) == 0) return r;
  for (int64_t b = 0; b < batch; ++b) {
    const at::Tensor hidden = seen.at(b).logical_not();
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t kv = kv_of_query[head];
      const at::Tensor q_SD = q[b].select(1, head), do_SD = d_o[b].select(1, head);
      const at::Tensor k_TD = k[b].select(1, kv), v_TD = v[b].select(1, kv);
      const at::Tensor uncapped = at::mm(q_SD, k_TD.t()) * scale;
      const at::Tensor s = capped(uncapped, cap).masked_fill(hidden, -INFINITY);
      const at::Tensor highest_seen = s.amax(1, true);
      const at::Tensor highest = highest_seen.masked_fill(highest_seen.eq(-INFINITY), 0);
      const at::Tensor weights = (s - highest).exp_();
      const at::Tensor sum = weights.sum(1, true);  // at least 1 where a key is seen
      const at::Tensor p = weights / sum.clamp_min(0.5);
      r.lse[b][head].copy_((highest + sum.log()).squeeze(1));
      const at::Tensor o_SD = at::mm(p, v_TD);
      r.o[b].select(1, head).copy_(o_SD);
      const at::Tensor dp = at::mm(do_SD, v_TD.t());
      const at::Tensor rounding = o_SD.to(kept_o).to(at::kDouble) - o_SD;
      const at::Tensor delta = (p * dp).sum(1, true) + (do_SD * rounding).sum(1, true);  // do . o
      const at::Tensor ds = (dp - delta).mul_(p).mul_(scale).mul_(slope(uncapped, cap));
      r.dq[b].select(1, head).copy_(at::mm(ds, k_TD));
      r.dk[b].select(1, kv).add_(at::mm(ds.t(), q_SD));
      r.dv[b].select(1, kv).add_(at::mm(p.t(), do_SD));
    }
  }
  return r;
}

OracleResult plain_low_precision(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const at::Tensor& d_o, double scale, const SeenKeys& seen,
                                 const std::vector<int>& kv_of_query, double cap) {
  const at::ScalarType dtype = q.scalar_type();
  OracleResult r{at::zeros_like(q),
                 {},
                 at::zeros_like(q),
                 at::zeros(k.sizes(), at::kFloat),
                 at::zeros(v.sizes(), at::kFloat)};
  for (int64_t b = 0; b < q.size(0); ++b) {
    const at::Tensor hidden = seen.at(b).logical_not();
    for (int64_t head = 0; head < q.size(2); ++head) {
      const int64_t kv = kv_of_query[head];
      const at::Tensor q_SD = q[b].select(1, head), k_TD = k[b].select(1, kv), v_TD = v[b].select(1, kv);
      const at::Tensor do_SD = d_o[b].select(1, head);
      const at::Tensor scores = product(q_SD, k_TD.t()).to(at::kFloat) * scale;
      const at::Tensor p = at::softmax(capped(scores, cap).masked_fill(hidden, -INFINITY), 1);
      const at::Tensor p_low = p.to(dtype);
      const at::Tensor o = product(p_low, v_TD);
      r.o[b].select(1, head).copy_(o);
      const at::Tensor dp = product(do_SD, v_TD.t()).to(at::kFloat);
      const at::Tensor ds = (p * (dp - (p * dp).sum(1, true)) * scale * slope(scores, cap)).to(dtype);
      r.dq[b].select(1, head).copy_(product(ds, k_TD));
      r.dk[b].select(1, kv).add_(product(ds.t(), q_SD).to(at::kFloat));
      r.dv[b].select(1, kv).add_(product(p_low.t(), do_SD).to(at::kFloat));
    }
  }
  r.dk = r.dk.to(dtype);
  r.dv = r.dv.to(dtype);
  return r;
}

double largest_difference(const at::Tensor& got, const at::Tensor& truth) {
  if (got.sizes() != truth.sizes()) return INFINITY;
  if (truth.numel() == 0) return 0;
  const at::Tensor difference = (got.to(at::kDouble) - truth.to(at::kDouble)).abs();
  return difference.isfinite().all().item<bool>() ? difference.max().item<double>() : INFINITY;
}

double relative_error(const at::Tensor& got, const at::Tensor& truth) {
  const double worst = largest_difference(got, truth);
  const double largest = truth.numel() == 0 ? 0 : truth.to(at::kDouble).abs().max().item<double>();
  return largest == 0 ? worst : worst / largest;
}

}  // namespace trireme_test
