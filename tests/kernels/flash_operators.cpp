// Sources: flash_api.cpp (mha_fwd, mha_varlen_fwd, mha_bwd, mha_varlen_bwd, set_params_fprop) and
// attention_backward.cu of PyTorch 2.11, FlashAttention 2.7.4.
#include "tests/kernels/flash_operators.h"

#include <limits>
#include <optional>
#include <tuple>
#include <vector>

#include <ATen/ATen.h>
#include <torch/library.h>

#include "tests/kernels/band_arithmetic.h"
#include "tests/kernels/operator_calls.h"
#include "tests/kernels/operator_demands.h"

namespace trireme_test {

namespace {

int64_t most_dq_elements = std::numeric_limits<int32_t>::max();

struct FlashMask {
  std::vector<Segment> segments;  // one a sample, or of rows that lie one after another
  std::optional<int64_t> left, right;
  double scale;

  SeenBand of(const Segment& s) const { return {(s.k_end - s.k) - (s.q_end - s.q), left, right}; }
};

// mha_fwd and set_params_fprop: a bound as wide as the longest keys is none, and then, where the other is
// there, as wide as they.
void take_window(FlashMask& mask, bool is_causal, int64_t left, int64_t right, int64_t longest_k) {
  if (left >= longest_k) left = -1;
  if (right >= longest_k) right = -1;
  if (is_causal) right = 0;
  const bool causal = left < 0 && right == 0;
  if (left < 0 && right >= 0 && !causal) left = longest_k;
  if (left >= 0 && right < 0) right = longest_k;
  if (left >= 0) mask.left = left;
  if (right >= 0) mask.right = right;
}

int32_t entry(const at::Tensor& cu, int64_t index) {
  return cu[index].item<int32_t>();
}

std::vector<Segment> segments_of(const at::Tensor& cu_q, const at::Tensor& cu_k, int64_t max_q,
                                 int64_t max_k) {
  for (const at::Tensor& cu : {cu_q, cu_k}) {
    TORCH_CHECK(cu.scalar_type() == at::kInt, "cu_seqlens: got ", cu.scalar_type());
    TORCH_CHECK(cu.is_contiguous() && cu.sizes() == cu_q.sizes() && cu.size(0) > 1);
  }
  // flash_fwd_launch_template.h: dim3 grid(num_m_block, params.b, params.h).
  TORCH_CHECK(cu_q.size(0) - 1 <= 65535, cu_q.size(0) - 1, " segments in one grid");
  std::vector<Segment> segments;
  for (int64_t i = 0; i + 1 < cu_q.size(0); ++i) {
    segments.push_back({entry(cu_q, i), entry(cu_q, i + 1), entry(cu_k, i), entry(cu_k, i + 1)});
    // The grid has blocks for max_q rows and max_k keys.
    TORCH_CHECK(segments.back().q_end - segments.back().q <= max_q, "a segment is longer than max_q");
    TORCH_CHECK(segments.back().k_end - segments.back().k <= max_k, "a segment is longer than max_k");
  }
  return segments;
}

void demand_inputs(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool dense) {
  TORCH_CHECK(q.dim() == (dense ? 4 : 3), "q: got ", q.dim(), " dimensions");
  demand_half(q, "q");
  for (const at::Tensor& x : {q, k, v}) {
    TORCH_CHECK(x.scalar_type() == q.scalar_type(), "dtypes differ");
    demand_rows_of_16_bytes(x, "q, k, v");
  }
  const int64_t width = q.size(-1);
  TORCH_CHECK(width % 8 == 0 && width <= 256, "head width ", width);
  TORCH_CHECK(q.size(-2) % k.size(-2) == 0, q.size(-2), " query heads over ", k.size(-2));
  if (dense)
    demand_shape(k, {q.size(0), k.size(1), k.size(2), width}, "k");
  else
    demand_shape(k, {k.size(0), k.size(1), width}, "k");
  demand_shape(v, k.sizes(), "v");
}

// What a dense call sees as rows one after another: one sample.
at::Tensor sample(const at::Tensor& x, bool dense, size_t index) {
  return dense ? x[static_cast<int64_t>(index)] : x;
}

FlashMask mask_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& cu_q, const at::Tensor& cu_k,
                  int64_t max_q, int64_t max_k, bool is_causal, std::optional<double> scale,
                  std::optional<int64_t> left, std::optional<int64_t> right) {
  TORCH_CHECK(cu_q.defined() == cu_k.defined());
  TORCH_CHECK(scale.has_value(), "no scale: 1 / sqrt(width) would be taken");
  FlashMask mask{{}, {}, {}, *scale};
  if (cu_q.defined()) {
    mask.segments = segments_of(cu_q, cu_k, max_q, max_k);
  } else {
    mask.segments.assign(static_cast<size_t>(q.size(0)), {0, q.size(1), 0, k.size(1)});
    max_k = k.size(1);  // max_q and max_k are not read
  }
  take_window(mask, is_causal, left.value_or(-1), right.value_or(-1), max_k);
  return mask;
}

using FlashOutput = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

FlashOutput flash_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const std::optional<at::Tensor>& cum_seq_q,
                          const std::optional<at::Tensor>& cum_seq_k, int64_t max_q, int64_t max_k,
                          double dropout_p, bool is_causal, bool return_debug_mask,
                          std::optional<double> scale, std::optional<int64_t> left,
                          std::optional<int64_t> right, const std::optional<at::Tensor>& seqused_k,
                          const std::optional<at::Tensor>& alibi_slopes) {
  const at::Tensor cu_q = cum_seq_q.value_or(at::Tensor()), cu_k = cum_seq_k.value_or(at::Tensor());
  const bool dense = !cu_q.defined();
  demand_inputs(q, k, v, dense);
  TORCH_CHECK(dropout_p == 0 && !return_debug_mask && !seqused_k && !alibi_slopes);
  // mha_varlen_fwd takes max_q of 1 for decoding and reshapes q to one row a segment.
  TORCH_CHECK(dense || max_q > 1 || q.size(0) == cu_q.size(0) - 1, "max_q of 1 with longer segments");
  const FlashMask mask = mask_of(q, k, cu_q, cu_k, max_q, max_k, is_causal, scale, left, right);
  const auto fp32 = q.options().dtype(at::kFloat);
  const at::Tensor o = unwritten_like(q);
  const at::Tensor lse =
      dense ? unwritten({q.size(0), q.size(2), q.size(1)}, fp32) : unwritten({q.size(1), q.size(0)}, fp32);
  for (size_t i = 0; i < mask.segments.size(); ++i)
    forward_segment(mask.segments[i], mask.of(mask.segments[i]), mask.scale, sample(q, dense, i),
                    sample(k, dense, i), sample(v, dense, i), sample(o, dense, i), sample(lse, dense, i));
  FlashOutput out{o, lse, at::empty({2}, at::kUInt64), at::empty({}, at::kUInt64),
                  at::empty({0}, q.options())};
  note_call("_flash_attention_forward",
            {{"query", q},
             {"key", k},
             {"value", v},
             {"cum_seq_q", cum_seq_q},
             {"cum_seq_k", cum_seq_k},
             {"max_q", max_q},
             {"max_k", max_k},
             {"dropout_p", dropout_p},
             {"is_causal", is_causal},
             {"return_debug_mask", return_debug_mask},
             {"scale", scale},
             {"window_size_left", left},
             {"window_size_right", right},
             {"seqused_k", seqused_k},
             {"alibi_slopes", alibi_slopes}},
            {std::get<0>(out), std::get<1>(out), std::get<2>(out), std::get<3>(out), std::get<4>(out)});
  return out;
}

// flash_bwd_kernel.h and flash_bwd_preprocess_kernel.h, row_offset_dq_accum: rows of all samples in blocks of
// 128, or of all segments and 128 for each, x heads x padded width, in an int.
void demand_countable_dq(const at::Tensor& q, const at::Tensor& cu_q) {
  const int64_t width = q.size(-1);
  const int64_t padded = width <= 128 ? (width + 31) / 32 * 32 : (width + 63) / 64 * 64;
  const int64_t rows =
      cu_q.defined() ? q.size(0) + 128 * (cu_q.size(0) - 1) : q.size(0) * ((q.size(1) + 127) / 128 * 128);
  TORCH_CHECK(rows * q.size(-2) * padded <= most_dq_elements, "dq of ", rows, " rows, ", q.size(-2),
              " heads, width ", padded, " is not counted by the kernel's offsets");
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> flash_backward(
    const at::Tensor& d_o, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& o,
    const at::Tensor& lse, const at::Tensor& cu_q, const at::Tensor& cu_k, int64_t max_q, int64_t max_k,
    double dropout_p, bool is_causal, const at::Tensor& rng_state, const at::Tensor& unused,
    std::optional<double> scale, std::optional<int64_t> left, std::optional<int64_t> right) {
  const bool dense = !cu_q.defined();
  demand_inputs(q, k, v, dense);
  for (const at::Tensor& x : {d_o, o}) {
    TORCH_CHECK(x.scalar_type() == q.scalar_type(), "o, do: dtypes differ");
    demand_shape(x, q.sizes(), "o, do");
    demand_rows_of_16_bytes(x.contiguous(), "o, do");  // the operator makes them contiguous
  }
  // The kernel is given lse's address alone.
  TORCH_CHECK(lse.scalar_type() == at::kFloat && lse.is_contiguous(), "lse: got ", lse.scalar_type(),
              " of strides ", lse.strides());
  if (dense)
    demand_shape(lse, {q.size(0), q.size(2), q.size(1)}, "lse");
  else
    demand_shape(lse, {q.size(1), q.size(0)}, "lse");
  TORCH_CHECK(dropout_p == 0);
  demand_countable_dq(q, cu_q);
  const FlashMask mask = mask_of(q, k, cu_q, cu_k, max_q, max_k, is_causal, scale, left, right);
  const at::Tensor dq = unwritten_like(q), dk = unwritten_like(k), dv = unwritten_like(v);
  for (size_t i = 0; i < mask.segments.size(); ++i)
    backward_segment(mask.segments[i], mask.of(mask.segments[i]), mask.scale, sample(d_o, dense, i),
                     sample(q, dense, i), sample(k, dense, i), sample(v, dense, i), sample(o, dense, i),
                     sample(lse, dense, i), sample(dq, dense, i), sample(dk, dense, i), sample(dv, dense, i));
  note_call("_flash_attention_backward",
            {{"grad_out", d_o},
             {"query", q},
             {"key", k},
             {"value", v},
             {"out", o},
             {"logsumexp", lse},
             {"cum_seq_q", cu_q},
             {"cum_seq_k", cu_k},
             {"max_q", max_q},
             {"max_k", max_k},
             {"dropout_p", dropout_p},
             {"is_causal", is_causal},
             {"rng_state", rng_state},
             {"unused", unused},
             {"scale", scale},
             {"window_size_left", left},
             {"window_size_right", right}},
            {dq, dk, dv});
  return {dq, dk, dv};
}

}  // namespace

LoweredDqBound::LoweredDqBound(int64_t elements) {
  most_dq_elements = elements;
}

LoweredDqBound::~LoweredDqBound() {
  most_dq_elements = std::numeric_limits<int32_t>::max();
}

TORCH_LIBRARY_IMPL(aten, CPU, library) {
  library.impl("_flash_attention_forward", &flash_forward);
  library.impl("_flash_attention_backward", &flash_backward);
}

}  // namespace trireme_test
