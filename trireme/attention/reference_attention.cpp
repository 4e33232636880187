// For each batch entry, key/value head and tile of T query rows, over the G query heads of that key/value
// head:
//
//   forward    s_GTK = scale q k', masked;  lse_GT = logsumexp(s);  o_GTD = exp(s - lse) v
//   backward   p = exp(s - lse);  ds = p (do v' - rowsum(do o));  dq = scale ds k, dk += scale ds' q, dv += p' do
//
// K runs over only those keys that the tile's causal mask and window can reach.
#include "trireme/attention/reference_attention.h"

#include <limits>

#include <ATen/core/grad_mode.h>

#include "trireme/attention/attention_arguments.h"
#include "trireme/base/error.h"

namespace trireme {

namespace {

constexpr int64_t kTileRows = 128;

// One tile of query rows [row, row + rows) and the keys [key, key + keys) that it can see.
struct RowTile {
  int64_t row;
  int64_t rows;
  int64_t key;
  int64_t keys;
};

RowTile tile_at(int64_t row, int64_t tokens, int64_t window) {
  const int64_t rows = std::min(kTileRows, tokens - row), key = first_key(row, window);
  return {row, rows, key, row + rows - key};
}

// [G, T, D] of heads [begin, end), in the compute type.
at::Tensor head_rows(const at::Tensor& x_SHD, const HeadRun& run, const RowTile& tile,
                     at::ScalarType compute) {
  return x_SHD.slice(0, tile.row, tile.row + tile.rows)
      .slice(1, run.begin, run.end)
      .transpose(0, 1)
      .to(compute);
}

// [K, D] of one key/value head, in the compute type.
at::Tensor head_keys(const at::Tensor& x_SKD, const HeadRun& run, const RowTile& tile,
                     at::ScalarType compute) {
  return x_SKD.slice(0, tile.key, tile.key + tile.keys).select(1, run.kv_head).to(compute);
}

// scale q k' with minus infinity where a query does not see a key: [G, T, K].
at::Tensor masked_scores(const at::Tensor& q_GTD, const at::Tensor& k_KD, const RowTile& tile,
                         const AttentionSpec& spec) {
  at::Tensor scores = at::matmul(q_GTD * spec.scale, k_KD.t());
  const auto options = q_GTD.options().dtype(at::kLong);
  const at::Tensor distance = at::arange(tile.row, tile.row + tile.rows, options).unsqueeze(1) -
                              at::arange(tile.key, tile.key + tile.keys, options).unsqueeze(0);
  at::Tensor hidden = distance < 0;
  if (spec.window > 0) hidden = hidden.logical_or(distance >= spec.window);
  return scores.masked_fill_(hidden, -std::numeric_limits<double>::infinity());
}

at::ScalarType compute_type(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace

std::string ReferenceAttention::name() const {
  return reason_.empty() ? "reference" : cat("reference (", reason_, ")");
}

AttentionOutput ReferenceAttention::forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                            const AttentionSpec& spec) {
  const at::NoGradGuard no_grad;
  const AttentionSizes sizes = check_attention(q, k, v, spec);
  const auto compute = compute_type(q.scalar_type());
  AttentionOutput out{
      at::empty(q.sizes(), q.options()),
      at::empty({sizes.batch, sizes.query_heads, sizes.tokens}, q.options().dtype(at::kFloat))};
  if (sizes.empty()) return out;
  for (int64_t b = 0; b < sizes.batch; ++b)
    for (const HeadRun& run : runs_of_heads(spec, sizes.kv_heads)) {
      if (run.begin == run.end) continue;
      for (int64_t row = 0; row < sizes.tokens; row += kTileRows) {
        const RowTile tile = tile_at(row, sizes.tokens, spec.window);
        const at::Tensor scores = masked_scores(head_rows(q[b], run, tile, compute),
                                                head_keys(k[b], run, tile, compute), tile, spec);
        const at::Tensor lse_GT1 = scores.logsumexp(2, true);
        const at::Tensor o_GTD = at::matmul((scores - lse_GT1).exp_(), head_keys(v[b], run, tile, compute));
        out.o[b].slice(0, row, row + tile.rows).slice(1, run.begin, run.end).copy_(o_GTD.transpose(0, 1));
        out.lse[b].slice(0, run.begin, run.end).slice(1, row, row + tile.rows).copy_(lse_GT1.squeeze(2));
      }
    }
  return out;
}

AttentionGradients ReferenceAttention::backward(const at::Tensor& d_o, const at::Tensor& q,
                                                const at::Tensor& k, const at::Tensor& v,
                                                const AttentionOutput& saved, const AttentionSpec& spec) {
  const at::NoGradGuard no_grad;
  const AttentionSizes sizes = check_attention_backward(d_o, q, k, v, saved, spec);
  const auto compute = compute_type(q.scalar_type());
  AttentionGradients gradients{at::empty(q.sizes(), q.options()), at::zeros(k.sizes(), k.options()),
                               at::zeros(v.sizes(), v.options())};
  if (sizes.empty()) return gradients;
  const auto sums = q.options().dtype(compute);
  for (int64_t b = 0; b < sizes.batch; ++b)
    for (const HeadRun& run : runs_of_heads(spec, sizes.kv_heads)) {
      if (run.begin == run.end) continue;
      at::Tensor dk_SD = at::zeros({sizes.tokens, sizes.width}, sums);
      at::Tensor dv_SD = at::zeros({sizes.tokens, sizes.width}, sums);
      for (int64_t row = 0; row < sizes.tokens; row += kTileRows) {
        const RowTile tile = tile_at(row, sizes.tokens, spec.window);
        const at::Tensor q_GTD = head_rows(q[b], run, tile, compute);
        const at::Tensor do_GTD = head_rows(d_o[b], run, tile, compute);
        const at::Tensor k_KD = head_keys(k[b], run, tile, compute);
        const at::Tensor scores = masked_scores(q_GTD, k_KD, tile, spec);
        // fp32 lse would cap the precision of fp64.
        const at::Tensor lse_GT1 =
            compute == at::kDouble
                ? scores.logsumexp(2, true)
                : saved.lse[b].slice(0, run.begin, run.end).slice(1, row, row + tile.rows).unsqueeze(2);
        const at::Tensor p_GTK = (scores - lse_GT1).exp_();
        const at::Tensor delta_GT1 = (do_GTD * head_rows(saved.o[b], run, tile, compute)).sum(2, true);
        const at::Tensor dp_GTK = at::matmul(do_GTD, head_keys(v[b], run, tile, compute).t());
        const at::Tensor ds_GTK = p_GTK * (dp_GTK - delta_GT1) * spec.scale;
        gradients.dq[b]
            .slice(0, row, row + tile.rows)
            .slice(1, run.begin, run.end)
            .copy_(at::matmul(ds_GTK, k_KD).transpose(0, 1));
        dk_SD.slice(0, tile.key, tile.key + tile.keys).add_(at::matmul(ds_GTK.transpose(1, 2), q_GTD).sum(0));
        dv_SD.slice(0, tile.key, tile.key + tile.keys).add_(at::matmul(p_GTK.transpose(1, 2), do_GTD).sum(0));
      }
      gradients.dk[b].select(1, run.kv_head).copy_(dk_SD);
      gradients.dv[b].select(1, run.kv_head).copy_(dv_SD);
    }
  return gradients;
}

}  // namespace trireme
