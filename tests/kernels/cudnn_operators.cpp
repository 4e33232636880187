// libtorch's _cudnn_attention_forward and _cudnn_attention_backward, which exist on CUDA alone, played on the
// CPU for dense calls. Sources: attention.cu, attention_backward.cu, cudnn/MHA.cpp (run_cudnn_SDP_fprop,
// run_cudnn_SDP_bprop, build_graph, build_graph_backward) and sdp_utils.cpp (check_cudnn_tensor_shapes) of
// PyTorch 2.11; scaled_dot_product_flash_attention.h of cudnn-frontend.
#include <map>
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

using Layout = std::vector<std::vector<int64_t>>;

void add_layout(Layout& layout, const at::Tensor& x) {
  layout.push_back(x.sizes().vec());
  layout.push_back(x.strides().vec());
}

// MHACacheKeyWrapper: a graph is found by q, k, v and the mask, and then runs with the strides that o, do,
// lse, dq, dk and dv had when it was built.
void demand_layout_of_graph(const std::vector<at::Tensor>& key, bool is_causal,
                            const std::vector<at::Tensor>& others) {
  static std::map<Layout, Layout> graphs;
  Layout found{{is_causal ? 1 : 0, static_cast<int64_t>(others.size())}}, layout;
  for (const at::Tensor& x : key) add_layout(found, x);
  for (const at::Tensor& x : others) add_layout(layout, x);
  TORCH_CHECK(graphs.emplace(found, layout).first->second == layout,
              "a cached graph has other strides than this call");
}

void demand_cudnn_inputs(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t max_q,
                         int64_t max_k, double dropout_p, std::optional<double> scale) {
  demand_half(q, "q");
  for (const at::Tensor& x : {q, k, v}) {
    TORCH_CHECK(x.dim() == 4, "q, k, v: got ", x.dim(), " dimensions");
    TORCH_CHECK(x.scalar_type() == q.scalar_type(), "dtypes differ");
    demand_rows_of_16_bytes(x, "q, k, v");
  }
  const int64_t width = q.size(3);
  demand_shape(k, {q.size(0), k.size(1), k.size(2), width}, "k");
  demand_shape(v, k.sizes(), "v");
  TORCH_CHECK(q.size(1) % k.size(1) == 0, q.size(1), " query heads over ", k.size(1));
  TORCH_CHECK(width % 8 == 0 && width <= 128, "head width ", width);
  TORCH_CHECK(q.size(0) <= 65535 && q.size(1) <= 65535, "batch and heads are counted in a grid's 65535");
  TORCH_CHECK(q.size(2) > 1 && k.size(2) > 1, "single rows");
  TORCH_CHECK(max_q == q.size(2) && max_k == k.size(2), "max_q and max_k are the graph's rows and keys");
  TORCH_CHECK(dropout_p == 0 && scale.has_value());
}

// Causal from the top left: row i sees keys up to i.
SeenBand cudnn_band(bool is_causal) {
  return {0, {}, is_causal ? std::optional<int64_t>(0) : std::nullopt};
}

Segment whole_sample(const at::Tensor& q, const at::Tensor& k) {
  return {0, q.size(2), 0, k.size(2)};
}

using CudnnOutput = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt,
                               at::Tensor, at::Tensor, at::Tensor>;

CudnnOutput cudnn_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const std::optional<at::Tensor>& attn_bias,
                          const std::optional<at::Tensor>& cum_seq_q,
                          const std::optional<at::Tensor>& cum_seq_k, int64_t max_q, int64_t max_k,
                          bool compute_log_sumexp, double dropout_p, bool is_causal, bool return_debug_mask,
                          std::optional<double> scale) {
  demand_cudnn_inputs(q, k, v, max_q, max_k, dropout_p, scale);
  TORCH_CHECK(!attn_bias && !cum_seq_q && !cum_seq_k, "bias or segments");
  TORCH_CHECK(compute_log_sumexp && !return_debug_mask);
  const at::Tensor o = unwritten_like(q);  // alloc_with_matching_layout: q's layout
  const at::Tensor lse = unwritten({q.size(0), q.size(1), q.size(2), 1}, q.options().dtype(at::kFloat));
  demand_layout_of_graph({q, k, v}, is_causal, {o, lse});
  for (int64_t b = 0; b < q.size(0); ++b)
    forward_segment(whole_sample(q, k), cudnn_band(is_causal), *scale, q[b].transpose(0, 1),
                    k[b].transpose(0, 1), v[b].transpose(0, 1), o[b].transpose(0, 1), lse[b].squeeze(2));
  const at::Tensor seed = at::empty({}, at::kLong), offset = at::empty({}, at::kLong), none;
  note_call("_cudnn_attention_forward",
            {{"query", q},
             {"key", k},
             {"value", v},
             {"attn_bias", attn_bias},
             {"cum_seq_q", cum_seq_q},
             {"cum_seq_k", cum_seq_k},
             {"max_q", max_q},
             {"max_k", max_k},
             {"compute_log_sumexp", compute_log_sumexp},
             {"dropout_p", dropout_p},
             {"is_causal", is_causal},
             {"return_debug_mask", return_debug_mask},
             {"scale", scale}},
            {o, lse, none, none, max_q, max_k, seed, offset, none});
  return {o, lse, none, none, max_q, max_k, seed, offset, none};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> cudnn_backward(
    const at::Tensor& d_o, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& o,
    const at::Tensor& lse, const at::Tensor& philox_seed, const at::Tensor& philox_offset,
    const at::Tensor& attn_bias, const at::Tensor& cum_seq_q, const at::Tensor& cum_seq_k, int64_t max_q,
    int64_t max_k, double dropout_p, bool is_causal, std::optional<double> scale) {
  demand_cudnn_inputs(q, k, v, max_q, max_k, dropout_p, scale);
  TORCH_CHECK(!attn_bias.defined() && !cum_seq_q.defined() && !cum_seq_k.defined());
  TORCH_CHECK(is_causal || k.size(2) % 128 != 64, "Hopper's NaN in dq: cudnn-frontend pull request 628");
  for (const at::Tensor& x : {d_o, o}) {
    demand_shape(x, q.sizes(), "o, do");
    TORCH_CHECK(x.scalar_type() == q.scalar_type(), "o, do: dtypes differ");
    demand_rows_of_16_bytes(x, "o, do");
  }
  // build_graph_backward makes the graph's Stats of lse's sizes and strides; cudnn-frontend: "The dim for
  // input_names::Stats is invalid", for all but four.
  TORCH_CHECK(lse.scalar_type() == at::kFloat, "lse: got ", lse.scalar_type());
  demand_shape(lse, {q.size(0), q.size(1), q.size(2), 1}, "lse");
  TORCH_CHECK(lse.is_contiguous(), "lse has strides ", lse.strides());
  const at::Tensor dq = unwritten_like(q), dk = unwritten_like(k), dv = unwritten_like(v);
  demand_layout_of_graph({q, k, v}, is_causal, {o, d_o, lse, dq, dk, dv});
  for (int64_t b = 0; b < q.size(0); ++b) {
    const auto rows = [b](const at::Tensor& x) { return x[b].transpose(0, 1); };
    backward_segment(whole_sample(q, k), cudnn_band(is_causal), *scale, rows(d_o), rows(q), rows(k), rows(v),
                     rows(o), lse[b].squeeze(2), rows(dq), rows(dk), rows(dv));
  }
  note_call("_cudnn_attention_backward",
            {{"grad_out", d_o},
             {"query", q},
             {"key", k},
             {"value", v},
             {"out", o},
             {"logsumexp", lse},
             {"philox_seed", philox_seed},
             {"philox_offset", philox_offset},
             {"attn_bias", attn_bias},
             {"cum_seq_q", cum_seq_q},
             {"cum_seq_k", cum_seq_k},
             {"max_q", max_q},
             {"max_k", max_k},
             {"dropout_p", dropout_p},
             {"is_causal", is_causal},
             {"scale", scale}},
            {dq, dk, dv});
  return {dq, dk, dv};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, CPU, library) {
  library.impl("_cudnn_attention_forward", &cudnn_forward);
  library.impl("_cudnn_attention_backward", &cudnn_backward);
}

}  // namespace trireme_test
