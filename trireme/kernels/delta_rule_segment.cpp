#include "trireme/kernels/delta_rule_segment.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "trireme/base/error.h"

namespace trireme {
namespace {

void check_delta_rule(const DeltaRuleInputs& in, const DeltaRuleSpec& spec) {
  const at::Tensor &q = in.q_BSKD, &k = in.k_BSKD, &v = in.v_BSVD;
  TRIREME_ASSERT(q.dim() == 4 && k.sizes() == q.sizes() && v.dim() == 4 && v.size(0) == q.size(0) &&
                     v.size(1) == q.size(1),
                 "delta rule: q of ", q.sizes(), ", k of ", k.sizes(), ", v of ", v.sizes());
  for (const at::Tensor* x : {&in.decay_BSV, &in.beta_BSV})
    TRIREME_ASSERT(x->sizes() == v.sizes().slice(0, 3), "delta rule: decay of ", in.decay_BSV.sizes(),
                   ", beta of ", in.beta_BSV.sizes(), " beside v of ", v.sizes());
  TRIREME_ASSERT(
      v.is_floating_point() && q.scalar_type() == v.scalar_type() && k.scalar_type() == v.scalar_type(),
      "delta rule: q, k and v are ", q.scalar_type(), ", ", k.scalar_type(), " and ", v.scalar_type());
  TRIREME_ASSERT(in.decay_BSV.scalar_type() == at::kFloat || in.decay_BSV.scalar_type() == at::kDouble,
                 "delta rule: decay is ", in.decay_BSV.scalar_type(), ", expected fp32 or fp64");
  TRIREME_ASSERT(spec.segment_chunks >= 0, "delta rule: segments of ", spec.segment_chunks, " chunks");
  TRIREME_ASSERT(static_cast<int64_t>(spec.key_of_value.size()) == v.size(2), "delta rule: key heads of ",
                 spec.key_of_value.size(), " value heads, expected ", v.size(2));
  for (const int64_t head : spec.key_of_value)
    TRIREME_ASSERT(head >= 0 && head < q.size(2), "delta rule: key head ", head, " of ", q.size(2));
  const at::Tensor& begins = spec.document_begins_BS;
  TRIREME_ASSERT(!begins.defined() || (begins.sizes() == q.sizes().slice(0, 2) &&
                                       begins.scalar_type() == at::kInt && begins.device() == q.device()),
                 "delta rule: document_begins of ", begins.defined() ? begins.sizes() : at::IntArrayRef(),
                 ", expected int32 ", q.sizes().slice(0, 2), " on ", q.device());
}

int64_t chunks_of_segments(const DeltaRuleSpec& spec, const at::Tensor& v_BSVD) {
  if (spec.segment_chunks > 0) return spec.segment_chunks;
  return delta_segment_chunks(v_BSVD.is_cpu(), v_BSVD.size(0) * v_BSVD.size(2));
}

}  // namespace

at::Tensor DeltaSegment::last_carried_nN11() const {
  return carried_nBVC1.select(3, kDeltaChunk_tokens - 1).flatten(1, 2).unsqueeze(-1);
}

DeltaRuleCall::DeltaRuleCall(const DeltaRuleInputs& inputs, const DeltaRuleSpec& spec) : inputs_(inputs) {
  check_delta_rule(inputs, spec);
  const at::Tensor &q = inputs.q_BSKD, &v = inputs.v_BSVD;
  const bool wide = v.scalar_type() == at::kDouble;
  options_ = v.options().dtype(wide ? at::kDouble : at::kFloat);
  sizes_ = {.batch = q.size(0),
            .tokens = q.size(1),
            .key_heads = q.size(2),
            .value_heads = v.size(2),
            .key_width = q.size(3),
            .value_width = v.size(3),
            .segment_chunks = chunks_of_segments(spec, v),
            .value_bytes = wide ? 8 : 4};
  if (empty()) return;
  group_ = even_key_group(spec.key_of_value, sizes_.key_heads);
  if (group_ == 0) {
    group_ = 1;
    sizes_.spread = true;
    // Filled there: a copy from the host would make it wait.
    key_of_value_ = at::empty({sizes_.value_heads}, q.options().dtype(at::kLong));
    for (int64_t head = 0; head < sizes_.value_heads; ++head)
      key_of_value_.narrow(0, head, 1).fill_(spec.key_of_value[static_cast<size_t>(head)]);
  }
  document_begins_BS_ = spec.document_begins_BS;
}

bool DeltaRuleCall::empty() const {
  return sizes_.batch == 0 || sizes_.tokens == 0 || sizes_.value_heads == 0 || sizes_.key_width == 0 ||
         sizes_.value_width == 0;
}

at::Tensor DeltaRuleCall::in_chunks(const at::Tensor& x_BSHD, const DeltaSegment& segment) const {
  const int64_t rows = segment.chunks * kDeltaChunk_tokens,
                tokens = std::min(rows, sizes_.tokens - segment.first_token);
  at::Tensor x = x_BSHD.narrow(1, segment.first_token, tokens);
  if (tokens < rows) x = at::constant_pad_nd(x, {0, 0, 0, 0, 0, rows - tokens});
  return x.unflatten(1, {segment.chunks, kDeltaChunk_tokens}).permute({1, 0, 3, 2, 4});
}

void DeltaRuleCall::put(const at::Tensor& to_BSHD, const at::Tensor& x_nBHCD,
                        const DeltaSegment& segment) const {
  const int64_t rows = segment.chunks * kDeltaChunk_tokens,
                tokens = std::min(rows, sizes_.tokens - segment.first_token);
  const at::Tensor to = to_BSHD.narrow(1, segment.first_token, tokens),
                   x_BnCHD = x_nBHCD.permute({1, 0, 3, 2, 4});
  if (tokens == rows)
    to.unflatten(1, {segment.chunks, kDeltaChunk_tokens}).copy_(x_BnCHD);
  else
    to.copy_(x_BnCHD.flatten(1, 2).narrow(1, 0, tokens));
}

at::Tensor DeltaRuleCall::grouped(const at::Tensor& x_nBV) const {
  return x_nBV.unflatten(2, {x_nBV.size(2) / group_, group_});
}

at::Tensor DeltaRuleCall::summed(const at::Tensor& x_nBV) const {
  return group_ == 1 ? x_nBV : grouped(x_nBV).sum(3);
}

UnitRows DeltaRuleCall::unit_rows(const at::Tensor& x_BSKD, double scale, const DeltaSegment& segment) const {
  const at::Tensor view = in_chunks(x_BSKD, segment);
  at::Tensor rows = at::empty(view.sizes(), options_).copy_(view);
  at::Tensor inverse = at::linalg_vector_norm(rows, 2, at::IntArrayRef{-1}, /*keepdim=*/true);
  inverse.square_().add_(1e-6).rsqrt_();
  rows.mul_(inverse * scale);
  if (key_of_value_.defined()) {
    rows = rows.index_select(2, key_of_value_);
    inverse = inverse.index_select(2, key_of_value_);
  }
  return {std::move(rows), std::move(inverse), scale};
}

// y = scale r x with r = 1 / sqrt(x^2 + eps):  dx = scale r (dy - y (y . dy) / scale^2).
at::Tensor DeltaRuleCall::of_inputs(at::Tensor d_rows_nBKCD, const UnitRows& unit) const {
  const at::Tensor along = (d_rows_nBKCD * unit.rows_nBKCD).sum(-1, /*keepdim=*/true);
  d_rows_nBKCD.addcmul_(unit.rows_nBKCD, along, -1 / (unit.scale * unit.scale));
  d_rows_nBKCD.mul_(unit.inverse_norm_nBKC1 * unit.scale);
  if (!key_of_value_.defined()) return d_rows_nBKCD;
  std::vector<int64_t> sizes = d_rows_nBKCD.sizes().vec();
  sizes[2] = sizes_.key_heads;
  return at::zeros(sizes, d_rows_nBKCD.options()).index_add_(2, key_of_value_, d_rows_nBKCD);
}

at::Tensor DeltaRuleCall::begins_in_chunks(const DeltaSegment& segment) const {
  const int64_t n = segment.chunks, rows = n * kDeltaChunk_tokens;
  const auto options = options_.dtype(at::kInt);
  const at::Tensor chunk_n11 =
      at::arange(segment.first_token, segment.first_token + rows, kDeltaChunk_tokens, options)
          .view({n, 1, 1});
  if (!document_begins_BS_.defined()) return chunk_n11.neg().expand({n, sizes_.batch, kDeltaChunk_tokens});
  const int64_t tokens = std::min(rows, sizes_.tokens - segment.first_token);
  at::Tensor begins_BS = document_begins_BS_.narrow(1, segment.first_token, tokens);
  // What is beyond the last token belongs to its document, where it adds nothing.
  if (tokens < rows)
    begins_BS = at::cat({begins_BS, begins_BS.narrow(1, tokens - 1, 1).expand({-1, rows - tokens})}, 1);
  return begins_BS.unflatten(1, {n, kDeltaChunk_tokens}).transpose(0, 1) - chunk_n11;
}

DeltaSegment DeltaRuleCall::segment(int64_t index) const {
  DeltaSegment s;
  const int64_t first_chunk = index * sizes_.segment_chunks;
  s.first_token = first_chunk * kDeltaChunk_tokens;
  s.chunks = std::min(sizes_.segment_chunks, sizes_.chunks() - first_chunk);
  const int64_t n = s.chunks, B = sizes_.batch, V = sizes_.value_heads, D = sizes_.key_width;
  const auto dtype = options_.dtype();

  s.q = unit_rows(inputs_.q_BSKD, 1 / std::sqrt(static_cast<double>(D)), s);
  s.k = unit_rows(inputs_.k_BSKD, 1, s);
  s.v_nBVCD = in_chunks(inputs_.v_BSVD, s);
  s.beta_nBVC1 = in_chunks(inputs_.beta_BSV.unsqueeze(-1), s).to(dtype).contiguous();

  const at::Tensor begin_nBC = begins_in_chunks(s);
  const at::Tensor place_C = at::arange(kDeltaChunk_tokens, begin_nBC.options());
  const at::Tensor document = (begin_nBC.unsqueeze(-1) <= place_C).tril_();
  s.document_nBCC = document.to(at::kDouble);
  // In fp64: next to a strong decay the differences of sums in fp32 have few digits left.
  const at::Tensor g_nBCV =
      in_chunks(inputs_.decay_BSV.unsqueeze(-1), s).squeeze(-1).transpose(2, 3).to(at::kDouble);
  const at::Tensor sums_nBVC = at::matmul(s.document_nBCC, g_nBCV).transpose(2, 3).contiguous();
  s.decay_nBVCC = (sums_nBVC.unsqueeze(-1) - sums_nBVC.unsqueeze(-2)).to(dtype);
  s.decay_nBVCC.masked_fill_(document.logical_not().unsqueeze(2), -std::numeric_limits<double>::infinity())
      .exp_();
  const at::Tensor carried_nBC = begin_nBC < 0;
  s.carried_nBVC1 = (sums_nBVC.exp() * carried_nBC.unsqueeze(2)).to(dtype).unsqueeze(-1);
  s.kept_nBVC1 = s.decay_nBVCC.select(3, kDeltaChunk_tokens - 1).unsqueeze(-1);

  const at::Tensor keys_as_columns = s.k.rows_nBKCD.mT();
  const auto decayed = [&](const at::Tensor& products_nBKCC) {
    at::Tensor out = at::empty_like(s.decay_nBVCC);
    at::Tensor to = grouped(out);
    at::mul_out(to, products_nBKCC.unsqueeze(3), grouped(s.decay_nBVCC));
    return out;
  };
  s.scores_nBVCC = decayed(at::matmul(s.q.rows_nBKCD, keys_as_columns));
  s.overlap_nBVCC = decayed(at::matmul(s.k.rows_nBKCD, keys_as_columns)).tril_(-1);
  s.inverse_nBVCC =
      at::linalg_solve_triangular(s.overlap_nBVCC * s.beta_nBVC1, at::eye(kDeltaChunk_tokens, options_),
                                  /*upper=*/false, /*left=*/true, /*unitriangular=*/true);

  s.reads_nNCD = at::empty({n, B * V, 2 * kDeltaChunk_tokens, D}, options_);
  const auto rows_into = [&](const at::Tensor& to_nNCD, const UnitRows& unit,
                             const at::Tensor& factor_nBVC1) {
    at::Tensor to = grouped(to_nNCD.unflatten(1, {B, V}));
    at::mul_out(to, unit.rows_nBKCD.unsqueeze(3), grouped(factor_nBVC1));
  };
  rows_into(s.reads_nNCD.narrow(2, 0, kDeltaChunk_tokens), s.k, (s.carried_nBVC1 * s.beta_nBVC1).neg_());
  rows_into(s.reads_nNCD.narrow(2, kDeltaChunk_tokens, kDeltaChunk_tokens), s.q, s.carried_nBVC1);
  s.writes_nNCD = at::empty({n, B * V, kDeltaChunk_tokens, D}, options_);
  rows_into(s.writes_nNCD, s.k, s.kept_nBVC1);
  return s;
}

}  // namespace trireme
