#include "tests/kernels/band_arithmetic.h"

#include <limits>

namespace trireme_test {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

at::Tensor hidden_by(const SeenBand& band, int64_t rows, int64_t keys) {
  const at::Tensor diagonal = at::arange(rows, at::kLong).unsqueeze(1) + band.offset;
  const at::Tensor key = at::arange(keys, at::kLong).unsqueeze(0);
  at::Tensor hidden = at::zeros({rows, keys}, at::kBool);
  if (band.left) hidden = hidden.logical_or(key.lt(diagonal - *band.left));
  if (band.right) hidden = hidden.logical_or(key.gt(diagonal + *band.right));
  return hidden;
}

// One query head with its key/value head.
struct Head {
  at::Tensor q, k, v, scores;
  Head(const Segment& s, const at::Tensor& hidden, double scale, const at::Tensor& q_NhD,
       const at::Tensor& k_MkD, const at::Tensor& v_MkD, int64_t head) {
    const int64_t kv = head / (q_NhD.size(1) / k_MkD.size(1));
    q = q_NhD.slice(0, s.q, s.q_end).select(1, head).to(at::kDouble);
    k = k_MkD.slice(0, s.k, s.k_end).select(1, kv).to(at::kDouble);
    v = v_MkD.slice(0, s.k, s.k_end).select(1, kv).to(at::kDouble);
    scores = (at::mm(q, k.t()) * scale).masked_fill(hidden, -kInfinity);
  }
};

}  // namespace

void forward_segment(const Segment& segment, const SeenBand& band, double scale, const at::Tensor& q,
                     const at::Tensor& k, const at::Tensor& v, const at::Tensor& o, const at::Tensor& lse) {
  const int64_t keys = segment.k_end - segment.k;
  const at::Tensor hidden = hidden_by(band, segment.q_end - segment.q, keys);
  for (int64_t head = 0; head < q.size(1); ++head) {
    const at::Tensor own_o = o.slice(0, segment.q, segment.q_end).select(1, head);
    const at::Tensor own_lse = lse[head].slice(0, segment.q, segment.q_end);
    if (keys == 0) {
      own_o.zero_();
      own_lse.fill_(kInfinity);
      continue;
    }
    const Head of(segment, hidden, scale, q, k, v, head);
    const at::Tensor sum = of.scores.logsumexp(1, true);
    const at::Tensor seen = sum.masked_fill(sum.eq(-kInfinity), kInfinity);
    own_o.copy_(at::mm((of.scores - seen).exp(), of.v));
    own_lse.copy_(seen.squeeze(1));
  }
}

void backward_segment(const Segment& segment, const SeenBand& band, double scale, const at::Tensor& d_o,
                      const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& o,
                      const at::Tensor& lse, const at::Tensor& dq, const at::Tensor& dk,
                      const at::Tensor& dv) {
  const at::Tensor own_dq = dq.slice(0, segment.q, segment.q_end),
                   own_dk = dk.slice(0, segment.k, segment.k_end),
                   own_dv = dv.slice(0, segment.k, segment.k_end);
  for (const at::Tensor& x : {own_dq, own_dk, own_dv}) x.zero_();
  if (segment.k == segment.k_end || segment.q == segment.q_end) return;
  const at::Tensor hidden = hidden_by(band, segment.q_end - segment.q, segment.k_end - segment.k);
  at::Tensor dk_sum = own_dk.to(at::kDouble), dv_sum = own_dv.to(at::kDouble);
  for (int64_t head = 0; head < q.size(1); ++head) {
    const Head of(segment, hidden, scale, q, k, v, head);
    const int64_t kv = head / (q.size(1) / k.size(1));
    const at::Tensor grad = d_o.slice(0, segment.q, segment.q_end).select(1, head).to(at::kDouble);
    const at::Tensor own_lse = lse[head].slice(0, segment.q, segment.q_end).unsqueeze(1).to(at::kDouble);
    const at::Tensor p = (of.scores - own_lse).exp();
    const at::Tensor own_o = o.slice(0, segment.q, segment.q_end).select(1, head).to(at::kDouble);
    const at::Tensor ds = p * (at::mm(grad, of.v.t()) - (grad * own_o).sum(1, true)) * scale;
    own_dq.select(1, head).copy_(at::mm(ds, of.k));
    dk_sum.select(1, kv).add_(at::mm(ds.t(), of.q));
    dv_sum.select(1, kv).add_(at::mm(p.t(), grad));
  }
  own_dk.copy_(dk_sum);
  own_dv.copy_(dv_sum);
}

at::Tensor unwritten_like(const at::Tensor& tensor) {
  return at::empty_like(tensor).fill_(std::nan(""));
}

at::Tensor unwritten(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return at::empty(sizes, options).fill_(std::nan(""));
}

}  // namespace trireme_test
