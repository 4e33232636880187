// libtorch's _efficient_attention_forward and _efficient_attention_backward, which exist on CUDA alone,
// played on the CPU for dense calls. Sources: attention.cu, attention_backward.cu and
// mem_eff_attention/ (kernel_forward.h, kernel_backward.h, gemm_kernel_utils.h) of PyTorch 2.11.
#include <limits>
#include <optional>
#include <tuple>

#include <ATen/ATen.h>
#include <torch/library.h>

#include "tests/kernels/band_arithmetic.h"
#include "tests/kernels/operator_calls.h"
#include "tests/kernels/operator_demands.h"

namespace trireme_test {

namespace {

constexpr int64_t kLseBlock = 32;  // AttentionKernel::kAlignLSE

int64_t padded_rows(int64_t rows) {
  return (rows + kLseBlock - 1) / kLseBlock * kLseBlock;
}

void demand_efficient_inputs(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             int64_t custom_mask_type, double dropout_p, std::optional<double> scale) {
  for (const at::Tensor& x : {q, k, v}) {
    const auto dtype = x.scalar_type();
    TORCH_CHECK(x.dim() == 4 && dtype == q.scalar_type() &&
                    (dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf),
                "q, k, v: got ", dtype);
    demand_rows_of_16_bytes(x, "q, k, v");  // kAlignmentQ, kAlignmentK: 128 bits
    // iter_key_start * p.k_strideM, query_start * p.q_strideM: both factors are int32.
    TORCH_CHECK(x.size(1) * x.stride(1) <= std::numeric_limits<int32_t>::max(),
                "rows are counted in 32 bits");
  }
  // No grouped heads: TORCH_CHECK(query.size(2) == key.size(2)).
  demand_shape(k, {q.size(0), k.size(1), q.size(2), q.size(3)}, "k");
  demand_shape(v, k.sizes(), "v");
  TORCH_CHECK(q.size(0) <= 65535 && q.size(2) <= 65535, "getBlocksGrid: heads and batch");
  TORCH_CHECK(custom_mask_type == 0 || custom_mask_type == 2, "mask type ", custom_mask_type);
  TORCH_CHECK(custom_mask_type == 0 || k.size(1) >= q.size(1), "a causal row would see nothing");
  TORCH_CHECK(dropout_p == 0 && scale.has_value());
}

SeenBand efficient_band(const at::Tensor& q, const at::Tensor& k, int64_t custom_mask_type) {
  if (custom_mask_type == 0) return {};
  return {k.size(1) - q.size(1), {}, 0};
}

using EfficientOutput = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt>;

EfficientOutput efficient_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const std::optional<at::Tensor>& bias,
                                  const std::optional<at::Tensor>& cu_seqlens_q,
                                  const std::optional<at::Tensor>& cu_seqlens_k,
                                  std::optional<int64_t> max_seqlen_q, std::optional<int64_t> max_seqlen_k,
                                  double dropout_p, int64_t custom_mask_type, bool compute_log_sumexp,
                                  std::optional<double> scale, const std::optional<at::Tensor>& seqlen_k,
                                  std::optional<int64_t> window_size) {
  demand_efficient_inputs(q, k, v, custom_mask_type, dropout_p, scale);
  TORCH_CHECK(!bias && !cu_seqlens_q && !cu_seqlens_k && !seqlen_k && !window_size);
  TORCH_CHECK(!max_seqlen_q && !max_seqlen_k && compute_log_sumexp);
  const at::Tensor o = unwritten(q.sizes(), q.options());
  const at::Tensor lse =
      unwritten({q.size(0), q.size(2), padded_rows(q.size(1))}, q.options().dtype(at::kFloat));
  lse.slice(2, q.size(1)).fill_(std::numeric_limits<float>::infinity());
  const SeenBand band = efficient_band(q, k, custom_mask_type);
  for (int64_t b = 0; b < q.size(0); ++b)
    forward_segment({0, q.size(1), 0, k.size(1)}, band, *scale, q[b], k[b], v[b], o[b], lse[b]);
  const at::Tensor seed = at::empty({}, at::kLong), offset = at::empty({}, at::kLong);
  note_call("_efficient_attention_forward",
            {{"query", q},
             {"key", k},
             {"value", v},
             {"bias", bias},
             {"cu_seqlens_q", cu_seqlens_q},
             {"cu_seqlens_k", cu_seqlens_k},
             {"max_seqlen_q", max_seqlen_q},
             {"max_seqlen_k", max_seqlen_k},
             {"dropout_p", dropout_p},
             {"custom_mask_type", custom_mask_type},
             {"compute_log_sumexp", compute_log_sumexp},
             {"scale", scale},
             {"seqlen_k", seqlen_k},
             {"window_size", window_size}},
            {o, lse, seed, offset, q.size(1), k.size(1)});
  return {o, lse, seed, offset, q.size(1), k.size(1)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> efficient_backward(
    const at::Tensor& d_o, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const std::optional<at::Tensor>& bias, const at::Tensor& o, const std::optional<at::Tensor>& cu_seqlens_q,
    const std::optional<at::Tensor>& cu_seqlens_k, int64_t max_seqlen_q, int64_t max_seqlen_k,
    const at::Tensor& lse, double dropout_p, const at::Tensor& philox_seed, const at::Tensor& philox_offset,
    int64_t custom_mask_type, bool bias_requires_grad, std::optional<double> scale,
    std::optional<int64_t> num_splits_key, std::optional<int64_t> window_size, bool shared_storage_dqdkdv) {
  demand_efficient_inputs(q, k, v, custom_mask_type, dropout_p, scale);
  TORCH_CHECK(!bias && !cu_seqlens_q && !cu_seqlens_k && !window_size && !bias_requires_grad);
  TORCH_CHECK(!num_splits_key && !shared_storage_dqdkdv);
  for (const at::Tensor& x : {d_o, o}) {
    demand_shape(x, q.sizes(), "o, do");
    TORCH_CHECK(x.scalar_type() == q.scalar_type(), "o, do: got ", x.scalar_type());
    // o_strideM() is its head's stride x heads; d_o's rows are read in int32 offsets.
    TORCH_CHECK(x.is_contiguous(), "o, do: strides ", x.strides());
    TORCH_CHECK(x.size(1) * x.stride(1) <= std::numeric_limits<int32_t>::max(),
                "rows are counted in 32 bits");
  }
  // Blocks of 32 rows are read whole: rows beyond the last are infinite.
  TORCH_CHECK(lse.scalar_type() == at::kFloat && lse.is_contiguous(), "lse has strides ", lse.strides());
  demand_shape(lse, {q.size(0), q.size(2), padded_rows(q.size(1))}, "lse");
  TORCH_CHECK(lse.slice(2, q.size(1)).eq(std::numeric_limits<float>::infinity()).all().item<bool>(),
              "lse is finite beyond the last row");
  const at::Tensor dq = unwritten(q.sizes(), q.options()), dk = unwritten(k.sizes(), k.options()),
                   dv = unwritten(v.sizes(), v.options());
  const SeenBand band = efficient_band(q, k, custom_mask_type);
  for (int64_t b = 0; b < q.size(0); ++b)
    backward_segment({0, q.size(1), 0, k.size(1)}, band, *scale, d_o[b], q[b], k[b], v[b], o[b], lse[b],
                     dq[b], dk[b], dv[b]);
  note_call("_efficient_attention_backward",
            {{"grad_out_", d_o},
             {"query", q},
             {"key", k},
             {"value", v},
             {"bias", bias},
             {"out", o},
             {"cu_seqlens_q", cu_seqlens_q},
             {"cu_seqlens_k", cu_seqlens_k},
             {"max_seqlen_q", max_seqlen_q},
             {"max_seqlen_k", max_seqlen_k},
             {"logsumexp", lse},
             {"dropout_p", dropout_p},
             {"philox_seed", philox_seed},
             {"philox_offset", philox_offset},
             {"custom_mask_type", custom_mask_type},
             {"bias_requires_grad", bias_requires_grad},
             {"scale", scale},
             {"num_splits_key", num_splits_key},
             {"window_size", window_size},
             {"shared_storage_dqdkdv", shared_storage_dqdkdv}},
            {dq, dk, dv, at::Tensor()});
  return {dq, dk, dv, at::Tensor()};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, CPU, library) {
  library.impl("_efficient_attention_forward", &efficient_forward);
  library.impl("_efficient_attention_backward", &efficient_backward);
}

}  // namespace trireme_test
