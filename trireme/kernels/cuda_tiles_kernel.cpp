// Attention by products of matrices, with tiles of scores in memory between them. It serves what no fused kernel of a
// GPU knows. For one sample, a block of R query rows and up to kScoreTile_keys of the keys that some of them see, all
// heads at once:
//
//   forward    s_kRT = q_kRD k_kTD'                  p = softmax step;  o_kRD = rescale o + p v
//   backward   s_kRT, dp_kRT = do v'                 p, ds;  dq += ds k,  dk += ds' q,  dv += p' do
//
// k key/value heads; R holds the rows of a head's query heads, one head after another. Products of 16-bit factors are
// fp32. The last tile's keys are padded to a multiple of 8; products with p and ds leave the padding out.
#include <algorithm>
#include <limits>

#include "trireme/base/error.h"
#include "trireme/base/round_up.h"
#include "trireme/kernels/cuda_kernels.h"
#include "trireme/kernels/score_tile.h"
#include "trireme/kernels/score_tile_sizes.h"

namespace trireme {

namespace {

// libtorch has products of 16-bit factors into fp32 on CUDA alone.
at::Tensor widened(const at::Tensor& x) {
  return x.is_cuda() ? x : x.to(at::kFloat);
}
at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_cuda() && a.scalar_type() != at::kFloat) return at::bmm(a, b, at::kFloat);
  return at::bmm(widened(a), widened(b));
}
void add_product(at::Tensor sum, const at::Tensor& a, const at::Tensor& b) {
  if (a.is_cuda() && a.scalar_type() != at::kFloat)
    at::baddbmm_out(sum, sum, a, b, at::kFloat);
  else
    sum.baddbmm_(widened(a), widened(b));
}

// [s, h, D] -> [k, h / k s, D], and lse [h, s] -> [k, h / k s, 1].
at::Tensor by_kv_heads(const at::Tensor& x_shD, int64_t kv_heads) {
  const int64_t rows = x_shD.size(0), heads = x_shD.size(1);
  return x_shD.transpose(0, 1).reshape({kv_heads, heads / kv_heads * rows, x_shD.size(2)});
}
at::Tensor column_by_kv_heads(const at::Tensor& x_hs, int64_t kv_heads) {
  return x_hs.reshape({kv_heads, x_hs.numel() / kv_heads, 1}).contiguous();
}
// The other way round, [k, h / k s, D] -> [s, h, D].
at::Tensor by_rows(const at::Tensor& x_kRD, int64_t rows) {
  return x_kRD.reshape({-1, rows, x_kRD.size(2)}).transpose(0, 1);
}

// Keys from `begin` on: [t, k, D] -> [k, t, D], with zeros behind the last up to row_keys.
at::Tensor padded_keys(const at::Tensor& x_tkD, const ScoreTile& tile, int64_t begin) {
  const at::Tensor x_ktD = x_tkD.narrow(0, begin, tile.band.keys).transpose(0, 1);
  return tile.row_keys == tile.band.keys
             ? x_ktD
             : at::constant_pad_nd(x_ktD, {0, 0, 0, tile.row_keys - tile.band.keys});
}

struct KeySpan {
  int64_t begin, end;
};

// Of one sample: query rows [row, row + rows), which see some of `all_keys` keys.
struct RowBlock {
  int64_t row, rows;
  int64_t diagonal;  // the key on row's diagonal
  int64_t all_keys;
  Band band;

  KeySpan seen() const {
    return {band.left == kUnbounded ? 0 : std::max<int64_t>(0, diagonal - band.left),
            band.right == kUnbounded ? all_keys : std::min(all_keys, diagonal + rows + band.right)};
  }
  // Of the tile of keys [begin, end).
  TileBand tile_band(const KeySpan& keys) const {
    TileBand of_tile{.keys = keys.end - keys.begin};
    if (band.left != kUnbounded) {
      of_tile.has_begin = true;
      of_tile.begin = diagonal - band.left - keys.begin;
    }
    if (band.right != kUnbounded) {
      of_tile.has_end = true;
      of_tile.end = diagonal + band.right + 1 - keys.begin;
    }
    return of_tile;
  }
};

class CudaTilesKernel final : public CallKernel {
 public:
  explicit CudaTilesKernel(int64_t most_tile_bytes) : most_tile_bytes_(most_tile_bytes) {}

  std::string name() const override { return "tiles (CUDA, scores in memory)"; }
  int64_t most_segments(const AttentionSizes& /*sizes*/) const override { return 1; }
  bool caps_scores() const override { return true; }
  std::string refusal(const MaskCall& /*call*/, const AttentionSizes& /*sizes*/) const override { return {}; }

  AttentionOutput forward(const at::Tensor& q_bshD, const at::Tensor& k_btkD, const at::Tensor& v_btkD,
                          const KernelMask& mask) override {
    AttentionOutput out{
        at::empty(q_bshD.sizes(), q_bshD.options()),
        at::empty({q_bshD.size(0), q_bshD.size(2), q_bshD.size(1)}, q_bshD.options().dtype(at::kFloat))};
    for (int64_t b = 0; b < q_bshD.size(0); ++b)
      for_each_block(q_bshD[b], k_btkD[b], mask, [&](const RowBlock& block) {
        forward_block(q_bshD[b], k_btkD[b], v_btkD[b], mask, block, {out.o[b], out.lse[b]});
      });
    return out;
  }

  AttentionGradients backward(const at::Tensor& d_o, const at::Tensor& q_bshD, const at::Tensor& k_btkD,
                              const at::Tensor& v_btkD, const AttentionOutput& saved,
                              const KernelMask& mask) override {
    AttentionGradients gradients{at::empty(q_bshD.sizes(), q_bshD.options()),
                                 at::empty(k_btkD.sizes(), k_btkD.options()),
                                 at::empty(v_btkD.sizes(), v_btkD.options())};
    for (int64_t b = 0; b < q_bshD.size(0); ++b) {
      const KeySums sums(k_btkD[b]);
      for_each_block(q_bshD[b], k_btkD[b], mask, [&](const RowBlock& block) {
        backward_block(d_o[b], q_bshD[b], k_btkD[b], v_btkD[b], {saved.o[b], saved.lse[b]}, mask, block,
                       gradients.dq[b], sums);
      });
      gradients.dk[b].copy_(sums.dk_kTD.transpose(0, 1));
      gradients.dv[b].copy_(sums.dv_kTD.transpose(0, 1));
    }
    return gradients;
  }

 private:
  // Of one sample.
  struct KeySums {
    explicit KeySums(const at::Tensor& k_tkD)
        : dk_kTD(at::zeros({k_tkD.size(1), k_tkD.size(0), k_tkD.size(2)}, k_tkD.options().dtype(at::kFloat))),
          dv_kTD(at::zeros_like(dk_kTD)) {}
    at::Tensor dk_kTD, dv_kTD;
  };

  template <typename F>
  void for_each_block(const at::Tensor& q_shD, const at::Tensor& k_tkD, const KernelMask& mask,
                      const F& f) const {
    TRIREME_ASSERT(mask.dense(), "attention by tiles takes no segments");
    const int64_t rows = q_shD.size(0), keys = k_tkD.size(0);
    const int64_t step = score_tile_sizes(q_shD.size(1), rows, keys, most_tile_bytes_).rows;
    for (int64_t row = 0; row < rows; row += step)
      f(RowBlock{row, std::min(step, rows - row), keys - rows + row, keys, mask.band});
  }

  // f(tile, its first key)
  template <typename F>
  static void for_each_tile(const at::Tensor& q_kRD, const RowBlock& block, const KernelMask& mask,
                            const F& f) {
    const KeySpan seen = block.seen();
    for (int64_t key = seen.begin; key < seen.end; key += kScoreTile_keys) {
      const KeySpan keys{key, std::min(key + kScoreTile_keys, seen.end)};
      f(ScoreTile{.rows = q_kRD.size(0) * q_kRD.size(1),
                  .rows_of_head = block.rows,
                  .row_keys = round_up(keys.end - keys.begin, kChunk),
                  .band = block.tile_band(keys),
                  .scale = static_cast<float>(mask.scores.scale),
                  .cap = static_cast<float>(mask.scores.cap)},
        key);
    }
  }

  static void forward_block(const at::Tensor& q_shD, const at::Tensor& k_tkD, const at::Tensor& v_tkD,
                            const KernelMask& mask, const RowBlock& block, const AttentionOutput& out) {
    const int64_t kv_heads = k_tkD.size(1);
    const at::Tensor q_kRD = by_kv_heads(q_shD.narrow(0, block.row, block.rows), kv_heads);
    const at::Tensor o_kRD = at::zeros(q_kRD.sizes(), q_kRD.options().dtype(at::kFloat));
    const auto column = [&](double value) {
      return at::full({q_kRD.size(0), q_kRD.size(1), 1}, value, o_kRD.options());
    };
    const RunningSoftmax_NR1 running{column(-std::numeric_limits<double>::infinity()), column(kNoKeysYet),
                                     column(0)};
    for_each_tile(q_kRD, block, mask, [&](const ScoreTile& tile, int64_t key) {
      const at::Tensor scores = product(q_kRD, padded_keys(k_tkD, tile, key).mT());
      const at::Tensor p_kRT = score_tile_softmax(tile, scores, q_shD.scalar_type(), running);
      o_kRD.mul_(running.rescale);
      add_product(o_kRD, p_kRT.narrow(2, 0, tile.band.keys),
                  v_tkD.narrow(0, key, tile.band.keys).transpose(0, 1));
    });
    const at::Tensor no_keys = running.sum.eq(kNoKeysYet);
    o_kRD.div_(running.sum.masked_fill(no_keys, 1));
    const at::Tensor lse_kR1 = running.max + running.sum.masked_fill(no_keys, 0).log();
    out.o.narrow(0, block.row, block.rows).copy_(by_rows(o_kRD, block.rows));
    out.lse.narrow(1, block.row, block.rows).copy_(lse_kR1.reshape({-1, block.rows}));
  }

  static void backward_block(const at::Tensor& do_shD, const at::Tensor& q_shD, const at::Tensor& k_tkD,
                             const at::Tensor& v_tkD, const AttentionOutput& saved, const KernelMask& mask,
                             const RowBlock& block, const at::Tensor& dq_shD, const KeySums& sums) {
    const int64_t kv_heads = k_tkD.size(1);
    const auto of_block = [&](const at::Tensor& x_shD) {
      return by_kv_heads(x_shD.narrow(0, block.row, block.rows), kv_heads);
    };
    const at::Tensor q_kRD = of_block(q_shD), do_kRD = of_block(do_shD);
    const at::Tensor delta_kR1 =
        (do_kRD.to(at::kFloat) * of_block(saved.o)).sum(2, /*keepdim=*/true, at::kFloat);
    const at::Tensor lse_kR1 = column_by_kv_heads(saved.lse.narrow(1, block.row, block.rows), kv_heads);
    const at::Tensor dq_kRD = at::zeros(q_kRD.sizes(), q_kRD.options().dtype(at::kFloat));
    for_each_tile(q_kRD, block, mask, [&](const ScoreTile& tile, int64_t key) {
      const auto real_keys = [&](const at::Tensor& x_kRT) { return x_kRT.narrow(2, 0, tile.band.keys); };
      const auto sum_of_keys = [&](const at::Tensor& sum_kTD) {
        return sum_kTD.narrow(1, key, tile.band.keys);
      };
      const at::Tensor scores = product(q_kRD, padded_keys(k_tkD, tile, key).mT());
      const at::Tensor dp = product(do_kRD, padded_keys(v_tkD, tile, key).mT());
      const auto [p, ds] = score_tile_gradients(tile, scores, dp, q_shD.scalar_type(), lse_kR1, delta_kR1);
      add_product(dq_kRD, real_keys(ds), k_tkD.narrow(0, key, tile.band.keys).transpose(0, 1));
      add_product(sum_of_keys(sums.dk_kTD), real_keys(ds).mT(), q_kRD);
      add_product(sum_of_keys(sums.dv_kTD), real_keys(p).mT(), do_kRD);
    });
    dq_shD.narrow(0, block.row, block.rows).copy_(by_rows(dq_kRD, block.rows));
  }

  int64_t most_tile_bytes_;
};

}  // namespace

std::unique_ptr<CallKernel> make_cuda_tiles_kernel(int64_t most_tile_bytes) {
  return std::make_unique<CudaTilesKernel>(most_tile_bytes);
}

}  // namespace trireme
