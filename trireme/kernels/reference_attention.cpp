// For each batch entry, key/value head and tile of T query rows, over the G query heads of that key/value
// head:
//
//   forward    s_GTK = scale q k', capped, masked;  lse_GT = logsumexp(s);  o_GTD = exp(s - lse) v
//   backward   p = exp(s - lse);  ds = p (do v' - rowsum(do o));  dq = scale ds k, dk += scale ds' q, dv +=
//                                                                 p' do
//
// With a cap ds is multiplied by 1 - (s / cap)^2, the slope of cap tanh(s / cap).
//
// K runs over only those keys that some row of the tile sees.
#include "trireme/kernels/reference_attention.h"

#include <limits>

#include <ATen/core/grad_mode.h>

#include "trireme/base/error.h"
#include "trireme/kernels/attention_arguments.h"
#include "trireme/kernels/token_ops.h"

namespace trireme {

namespace {

constexpr int64_t kTileRows = 128;

// Query rows [row, row + rows) and key rows [key, key + keys), with what is hidden [T, K].
struct RowTile {
  int64_t row;
  int64_t rows;
  int64_t key;
  int64_t keys;
  at::Tensor hidden;
};

at::Tensor as_column(const std::vector<int64_t>& values, int64_t row, int64_t rows) {
  return at::from_blob(const_cast<int64_t*>(values.data() + row), {rows, 1}, at::kLong);
}

RowTile tile_at(const VisibleKeys& visible, int64_t sample, int64_t row, at::Device device) {
  const KeyRanges& ranges = visible.of(sample);
  RowTile tile{row, std::min(kTileRows, ranges.queries() - row), 0, 0, {}};
  const std::vector<RowRange> intervals = key_intervals(visible, sample, row, row + tile.rows);
  if (intervals.empty()) return tile;
  tile.key = intervals.front().begin;
  tile.keys = intervals.back().end - tile.key;
  const at::Tensor keys = at::arange(tile.key, tile.key + tile.keys, at::kLong);
  at::Tensor hidden = keys.lt(as_column(ranges.begin, row, tile.rows))
                          .logical_or(keys.ge(as_column(ranges.end, row, tile.rows)));
  const SparseBlocks& sparse = visible.sparse;
  if (!sparse.dense())
    for (int64_t i = row / sparse.block_tokens; i * sparse.block_tokens < row + tile.rows; ++i)
      for (int64_t j = tile.key / sparse.block_tokens; j * sparse.block_tokens < tile.key + tile.keys; ++j) {
        if (sparse.keeps(i, j, visible.causality)) continue;
        const auto local = [&](int64_t block, int64_t first, int64_t count) {
          return std::clamp<int64_t>(block * sparse.block_tokens - first, 0, count);
        };
        hidden.slice(0, local(i, row, tile.rows), local(i + 1, row, tile.rows))
            .slice(1, local(j, tile.key, tile.keys), local(j + 1, tile.key, tile.keys))
            .fill_(true);
      }
  tile.hidden = hidden.to(device);
  return tile;
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

// scale q k', capped: [G, T, K].
at::Tensor scores_of(const at::Tensor& q_GTD, const at::Tensor& k_KD, const AttentionSpec& spec) {
  at::Tensor scores = at::matmul(q_GTD * spec.scores.scale, k_KD.t());
  if (spec.scores.cap > 0) scores.div_(spec.scores.cap).tanh_().mul_(spec.scores.cap);
  return scores;
}

// Minus infinity where a query does not see a key.
at::Tensor masked(const at::Tensor& scores_GTK, const RowTile& tile) {
  return scores_GTK.masked_fill(tile.hidden, -std::numeric_limits<double>::infinity());
}

// exp(s - lse); a query that sees nothing has no probabilities.
at::Tensor probabilities(const at::Tensor& scores, const at::Tensor& lse_GT1, const RowTile& tile) {
  return (scores - lse_GT1.masked_fill(tile.hidden.all(1, true), 0)).exp_();
}

}  // namespace

std::string ReferenceAttention::name() const {
  return reason_.empty() ? "reference" : cat("reference (", reason_, ")");
}

AttentionOutput ReferenceAttention::forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                            const AttentionSpec& spec) {
  const at::NoGradGuard no_grad;
  const AttentionSizes sizes = check_attention(q, k, v, spec);
  const auto compute = compute_dtype(q);
  AttentionOutput out = output_without_keys(q, spec);
  if (sizes.empty()) return out;
  const std::vector<HeadRun> runs = runs_of_heads(spec, sizes.kv_heads);
  for (int64_t b = 0; b < sizes.batch; ++b)
    for (int64_t row = 0; row < sizes.queries; row += kTileRows) {
      const RowTile tile = tile_at(*spec.keys, b, row, q.device());
      if (tile.keys == 0) continue;
      for (const HeadRun& run : runs) {
        if (run.begin == run.end) continue;
        const at::Tensor scores = masked(
            scores_of(head_rows(q[b], run, tile, compute), head_keys(k[b], run, tile, compute), spec), tile);
        const at::Tensor lse_GT1 = scores.logsumexp(2, true);
        const at::Tensor o_GTD =
            at::matmul(probabilities(scores, lse_GT1, tile), head_keys(v[b], run, tile, compute));
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
  const auto compute = compute_dtype(q);
  AttentionGradients gradients = no_gradients(q, k, spec);
  if (sizes.empty()) return gradients;
  const auto sums = q.options().dtype(compute);
  for (int64_t b = 0; b < sizes.batch; ++b)
    for (const HeadRun& run : runs_of_heads(spec, sizes.kv_heads)) {
      if (run.begin == run.end) continue;
      const at::Tensor dk_TD = at::zeros({sizes.keys, sizes.width}, sums);
      const at::Tensor dv_TD = at::zeros({sizes.keys, sizes.width}, sums);
      for (int64_t row = 0; row < sizes.queries; row += kTileRows) {
        const RowTile tile = tile_at(*spec.keys, b, row, q.device());
        if (tile.keys == 0) continue;
        const at::Tensor q_GTD = head_rows(q[b], run, tile, compute);
        const at::Tensor do_GTD = head_rows(d_o[b], run, tile, compute);
        const at::Tensor k_KD = head_keys(k[b], run, tile, compute);
        const at::Tensor scores = scores_of(q_GTD, k_KD, spec);
        const at::Tensor lse_GT1 =
            saved.lse[b].slice(0, run.begin, run.end).slice(1, row, row + tile.rows).unsqueeze(2);
        const at::Tensor p_GTK = probabilities(masked(scores, tile), lse_GT1, tile);
        const at::Tensor delta_GT1 = (do_GTD * head_rows(saved.o[b], run, tile, compute)).sum(2, true);
        const at::Tensor dp_GTK = at::matmul(do_GTD, head_keys(v[b], run, tile, compute).t());
        at::Tensor ds_GTK = p_GTK * (dp_GTK - delta_GT1) * spec.scores.scale;
        if (spec.scores.cap > 0) ds_GTK.mul_(1 - scores.div(spec.scores.cap).square_());
        gradients.dq[b]
            .slice(0, row, row + tile.rows)
            .slice(1, run.begin, run.end)
            .copy_(at::matmul(ds_GTK, k_KD).transpose(0, 1));
        dk_TD.slice(0, tile.key, tile.key + tile.keys).add_(at::matmul(ds_GTK.transpose(1, 2), q_GTD).sum(0));
        dv_TD.slice(0, tile.key, tile.key + tile.keys).add_(at::matmul(p_GTK.transpose(1, 2), do_GTD).sum(0));
      }
      gradients.dk[b].select(1, run.kv_head).copy_(dk_TD);
      gradients.dv[b].select(1, run.kv_head).copy_(dv_TD);
    }
  return gradients;
}

}  // namespace trireme
