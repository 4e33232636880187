// Backward, for one query head and its key/value head, on transposed tiles (N keys x 64 queries):
//
//   for each block of up to 192 keys, for each 64 queries that see some of them
//     s' = k q'      p' = exp2(c s' - lse2)      dp' = v do'      ds' = scale p' (dp' - delta)
//     dv += p' do    dk += ds' q                 dq' += k' ds'
//
// delta = rowsum(do o). The transposed form lets every product read row-major tiles: q' and do' are packed
// once a head as panels [D,64], q and do as panels [S,64], and dq' grows as panels [D,64]. Sums are fp32.
//
// Threads: each takes whole key/value heads where these divide well among threads. Otherwise the key blocks
// of one query head are dealt out to all threads, each with its own dq', which are summed in thread order.
#include <array>
#include <limits>
#include <utility>

#include "trireme/kernels/attention_arguments.h"
#include "trireme/kernels/cpu_flash_attention.h"
#include "trireme/kernels/pack_panels.h"

namespace trireme {

namespace {

// The key rows that each tile of 64 queries of one sample sees.
class QueryTiles {
 public:
  QueryTiles(const VisibleKeys& keys, int64_t sample, int64_t queries)
      : ranges_(keys.of(sample)), dense_(keys.sparse.dense()), queries_(queries) {
    int64_t end = 0;
    intervals_.reserve(static_cast<size_t>(round_up(queries, kPanel) / kPanel));
    ends_.reserve(intervals_.capacity());
    for (int64_t row = 0; row < queries; row += kPanel) {
      intervals_.push_back(key_intervals(keys, sample, row, std::min(row + kPanel, queries)));
      if (!intervals_.back().empty()) end = std::max(end, intervals_.back().back().end);
      ends_.push_back(end);
    }
  }

  // body(row, key, n) for each tile [row, row + 64) and keys [key, key + n) in whole panels of [block,
  // block_end).
  template <typename Body>
  void with_block(int64_t block, int64_t block_end, const Body& body) const {
    const auto first = std::upper_bound(ends_.begin(), ends_.end(), block) - ends_.begin();
    for (size_t tile = static_cast<size_t>(first); tile < intervals_.size(); ++tile) {
      if (dense_ && !intervals_[tile].empty() && intervals_[tile].front().begin >= block_end) return;
      for (const RowRange& interval : intervals_[tile]) {
        const int64_t key = std::max(block, interval.begin / kPanel * kPanel);
        const int64_t key_end = std::min(block_end, round_up(interval.end, kPanel));
        if (key < key_end) body(static_cast<int64_t>(tile) * kPanel, key, key_end - key);
      }
    }
  }

  // Of keys [key, key + n) and the tile at `row`: the queries [begin, end) that see each, if not all do. The
  // queries that see a key are consecutive, since both ends of the ranges grow.
  bool edges(int64_t row, int64_t key, int64_t n, int32_t* begin, int32_t* end) const {
    const auto rows = static_cast<int32_t>(std::min(kPanel, queries_ - row));
    const int64_t *first = ranges_.begin.data() + row, *last = ranges_.end.data() + row;
    if (first[rows - 1] <= key && last[0] >= key + n) return false;
    int32_t from = 0, to = 0;
    for (int64_t r = 0; r < n; ++r) {
      while (from < rows && last[from] <= key + r) ++from;
      while (to < rows && first[to] <= key + r) ++to;
      begin[r] = from;
      end[r] = std::max(from, to);
    }
    return true;
  }

 private:
  const KeyRanges& ranges_;
  bool dense_;
  int64_t queries_;
  std::vector<std::vector<RowRange>> intervals_;
  std::vector<int64_t> ends_;  // of the keys seen by this tile or one before
};

// The tensors of one call, seen from one query head.
template <typename I>
struct HeadRows {
  const I *q, *k, *v, *o, *d_o;  // first token
  int64_t q_stride, k_stride, v_stride, o_stride, do_stride;
  const float* lse;
};

template <typename I, typename E>
void pack_queries(const HeadRows<I>& rows, const FlashSizes& z, HeadTiles<E>& t) {
  const auto log2e = static_cast<float>(1.0 / std::log(2.0));
  for (int64_t row = 0; row < z.padded_queries; row += kPanel) {
    const int64_t used = std::min(kPanel, z.queries - row);
    const I* q = rows.q + row * rows.q_stride;
    const I* d_o = rows.d_o + row * rows.do_stride;
    pack_columns_panel(q, rows.q_stride, used, z.width, z.depth, t.q_columns + row * z.depth);
    pack_columns_panel(d_o, rows.do_stride, used, z.width, z.depth, t.do_columns + row * z.depth);
    pack_rows_panels(q, rows.q_stride, used, z.width, row, z.padded_queries, t.q_rows);
    pack_rows_panels(d_o, rows.do_stride, used, z.width, row, z.padded_queries, t.do_rows);
  }
  for (int64_t i = 0; i < z.queries; ++i) {
    const I* o = rows.o + i * rows.o_stride;
    const I* d_o = rows.d_o + i * rows.do_stride;
    std::array<float, 8> sums{};  // eight chains, so that additions do not wait for each other
    int64_t d = 0;
    for (; d + 8 <= z.width; d += 8)
      for (int64_t j = 0; j < 8; ++j)
        sums[j] += static_cast<float>(o[d + j]) * static_cast<float>(d_o[d + j]);
    for (; d < z.width; ++d) sums[0] += static_cast<float>(o[d]) * static_cast<float>(d_o[d]);
    t.delta[i] = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
    // A query that sees nothing has no probabilities.
    const float lse = rows.lse[i];
    t.lse2[i] = lse == -std::numeric_limits<float>::infinity() ? -lse : lse * log2e;
  }
  for (int64_t i = z.queries; i < z.padded_queries; ++i) {
    t.delta[i] = 0;
    t.lse2[i] = std::numeric_limits<float>::infinity();
  }
}

template <typename I, typename E>
void pack_keys(const HeadRows<I>& rows, const FlashSizes& z, int64_t key, HeadTiles<E>& t) {
  const int64_t used = std::min(kBackwardKeys, z.keys - key);
  const I* k = rows.k + key * rows.k_stride;
  pack_rows(k, rows.k_stride, used, z.width, kBackwardKeys, z.depth, t.k_rows);
  pack_rows(rows.v + key * rows.v_stride, rows.v_stride, used, z.width, kBackwardKeys, z.depth, t.v_rows);
  transpose_rows(t.k_rows, z.depth, kBackwardKeys, z.width, t.k_columns, kBackwardKeys);
}

// What all tiles of a query head share.
struct HeadMath {
  const QueryTiles& queries;
  const FlashSizes& z;
  const TileMath& tile;
  PanelProducts& products;
  ScoreRule rule;
};

// The products of keys [key, key + n), which lie in the block of keys from `block` on, and queries
// [row, row + 64).
template <typename E>
void one_tile(const HeadMath& math, int64_t block, int64_t key, int64_t n, int64_t row, HeadTiles<E>& t) {
  const FlashSizes& z = math.z;
  PanelProducts& products = math.products;
  products.run(n, kPanel, z.depth, t.k_rows + (key - block) * z.depth, z.depth, t.q_columns + row * z.depth,
               t.scores, kPanel, false);
  products.run(n, kPanel, z.depth, t.v_rows + (key - block) * z.depth, z.depth, t.do_columns + row * z.depth,
               t.gradients, kPanel, false);
  std::array<int32_t, kBackwardKeys> begin{}, end{};
  const bool edge = math.queries.edges(row, key, n, begin.data(), end.data());
  constexpr bool kWide = std::is_same_v<E, float>;
  math.tile.gradient({t.scores, t.gradients, kWide ? nullptr : t.scores16, t.gradients16, t.pairs16, n,
                      edge ? begin.data() : nullptr, edge ? end.data() : nullptr, math.rule, t.lse2 + row,
                      t.delta + row});
  const E *p = nullptr, *ds = nullptr, *ds_panel = nullptr;
  if constexpr (kWide) {
    p = t.scores;
    ds = ds_panel = t.gradients;
  } else {
    p = reinterpret_cast<const E*>(t.scores16);
    ds = reinterpret_cast<const E*>(t.gradients16);
    ds_panel = reinterpret_cast<const E*>(t.pairs16);
  }
  for (int64_t panel = 0; panel < z.panels; ++panel) {
    const int64_t columns = std::min(kPanel, z.width - panel * kPanel),
                  from = panel * panel_size(z.padded_queries) + row * kPanel;
    products.run(n, columns, kPanel, p, kPanel, t.do_rows + from, t.dv + key * z.columns + panel * kPanel,
                 z.columns, true);
    products.run(n, columns, kPanel, ds, kPanel, t.q_rows + from, t.dk + key * z.columns + panel * kPanel,
                 z.columns, true);
  }
  products.run(z.width, kPanel, n, t.k_columns + (key - block), kBackwardKeys, ds_panel, t.dq + row * z.width,
               kPanel, true);
}

// Key blocks turn, turn + turns, ... of one query head; adds to dk, dv and dq of `t`.
template <typename I, typename E>
void one_head(const HeadRows<I>& rows, const HeadMath& math, int64_t turn, int64_t turns, HeadTiles<E>& t) {
  for (int64_t block = turn * kBackwardKeys; block < math.z.keys; block += turns * kBackwardKeys) {
    bool packed = false;
    math.queries.with_block(block, std::min(block + kBackwardKeys, math.z.padded_keys),
                            [&](int64_t row, int64_t key, int64_t n) {
                              if (!std::exchange(packed, true)) pack_keys(rows, math.z, block, t);
                              one_tile(math, block, key, n, row, t);
                            });
  }
}

// Sum over `parts` of panels dq' of tokens [row, row + 64) -> the head's rows of the result.
template <typename O>
void write_dq(const TileMath& math, const std::vector<const float*>& parts, const FlashSizes& z, int64_t row,
              O* dq, int64_t stride) {
  for (int64_t d = 0; d < z.width; d += kPanel) {
    std::array<float, kPanel * kPanel> sum{}, rows{};
    const int64_t columns = std::min(kPanel, z.width - d), first = row * z.width + d * kPanel;
    for (const float* part : parts)
      for (int64_t i = 0; i < columns * kPanel; ++i) sum[i] += part[first + i];
    transpose_rows(sum.data(), kPanel, columns, kPanel, rows.data(), kPanel);
    for (int64_t i = 0; i < std::min(kPanel, z.queries - row); ++i)
      write_row(math, rows.data() + i * kPanel, 1, columns, dq + (row + i) * stride + d);
  }
}

template <typename O>
void write_rows(const TileMath& math, const float* from, const FlashSizes& z, O* to, int64_t stride) {
  for (int64_t i = 0; i < z.keys; ++i) write_row(math, from + i * z.columns, 1, z.width, to + i * stride);
}

// body(first row of a head in `result`), in the result's own type.
template <typename I, typename Body>
void with_rows_of(const at::Tensor& result, int64_t b, int64_t head, const Body& body) {
  const int64_t offset = (b * result.size(1) * result.size(2) + head) * result.size(3);
  with_elements_of<I>(result, [&](auto* first) { body(first + offset); });
}

// One call: its tensors, and what all its threads share.
template <typename I, typename E>
struct BackwardCall {
  const at::Tensor &d_o, &q, &k, &v, &o;
  const at::Tensor lse;  // contiguous
  const AttentionGradients& gradients;
  const FlashSizes z;
  const std::vector<QueryTiles> queries;  // of one sample, or one for all
  const std::vector<HeadRun> runs;
  const TileMath& math;
  const Bf16Units units;
  const ScoreRule rule;

  int64_t tasks() const { return q.size(0) * k.size(2); }
  HeadRows<I> rows_at(int64_t b, int64_t head, int64_t kv_head) const {
    return {rows_of<I>(q, b, 0, head),
            rows_of<I>(k, b, 0, kv_head),
            rows_of<I>(v, b, 0, kv_head),
            rows_of<I>(o, b, 0, head),
            rows_of<I>(d_o, b, 0, head),
            q.stride(1),
            k.stride(1),
            v.stride(1),
            o.stride(1),
            d_o.stride(1),
            lse.const_data_ptr<float>() + (b * q.size(2) + head) * z.queries};
  }
  // One query head's key blocks turn, turn + turns, ...: adds to dk and dv of `t`, and makes its dq.
  void add_head(const HeadRows<I>& rows, int64_t b, int64_t turn, int64_t turns, HeadTiles<E>& t) const {
    PanelProducts products(units);
    pack_queries(rows, z, t);
    std::fill_n(t.dq, z.padded_queries * z.width, 0.0f);
    one_head(rows,
             HeadMath{queries[queries.size() == 1 ? 0 : static_cast<size_t>(b)], z, math, products, rule},
             turn, turns, t);
  }
  void clear_keys(const HeadTiles<E>& t) const {
    std::fill_n(t.dk, z.padded_keys * z.columns, 0.0f);
    std::fill_n(t.dv, z.padded_keys * z.columns, 0.0f);
  }
  void write_keys(const HeadTiles<E>& t, int64_t b, int64_t kv_head) const {
    const int64_t stride = k.size(2) * z.width;
    with_rows_of<I>(gradients.dk, b, kv_head, [&](auto* to) { write_rows(math, t.dk, z, to, stride); });
    with_rows_of<I>(gradients.dv, b, kv_head, [&](auto* to) { write_rows(math, t.dv, z, to, stride); });
  }
  void write_queries(const std::vector<const float*>& parts, int64_t row, int64_t b, int64_t head) const {
    const int64_t stride = q.size(2) * z.width;
    with_rows_of<I>(gradients.dq, b, head, [&](auto* to) { write_dq(math, parts, z, row, to, stride); });
  }
};

template <typename I, typename E>
void share_kv_heads(const BackwardCall<I, E>& call, std::vector<Scratch>& threads, int workers) {
  const auto kv_heads = static_cast<int64_t>(call.runs.size());
  share_items(workers, call.tasks(), [&](int worker, int64_t task) {
    const int64_t b = task / kv_heads;
    const HeadRun& run = call.runs[task % kv_heads];
    HeadTiles<E> t = cut_scratch<HeadTiles<E>>(threads[worker], call.z);
    call.clear_keys(t);
    for (int64_t head = run.begin; head < run.end; ++head) {
      call.add_head(call.rows_at(b, head, run.kv_head), b, 0, 1, t);
      for (int64_t row = 0; row < call.z.queries; row += kPanel) call.write_queries({t.dq}, row, b, head);
    }
    call.write_keys(t, b, run.kv_head);
  });
}

template <typename I, typename E>
void share_key_blocks(const BackwardCall<I, E>& call, std::vector<Scratch>& threads, int workers) {
  const auto kv_heads = static_cast<int64_t>(call.runs.size());
  std::vector<HeadTiles<E>> tiles;
  std::vector<const float*> parts;
  for (int worker = 0; worker < workers; ++worker) {
    tiles.push_back(cut_scratch<HeadTiles<E>>(threads[worker], call.z));
    tiles.back().dk = tiles.front().dk;  // each key block is one worker's
    tiles.back().dv = tiles.front().dv;
    parts.push_back(tiles.back().dq);
  }
  for (int64_t task = 0; task < call.tasks(); ++task) {
    const int64_t b = task / kv_heads;
    const HeadRun& run = call.runs[task % kv_heads];
    call.clear_keys(tiles.front());
    for (int64_t head = run.begin; head < run.end; ++head) {
      const HeadRows<I> rows = call.rows_at(b, head, run.kv_head);
      share_items(workers, workers,
                  [&](int /*worker*/, int64_t turn) { call.add_head(rows, b, turn, workers, tiles[turn]); });
      share_items(workers, call.z.padded_queries / kPanel,
                  [&](int /*worker*/, int64_t block) { call.write_queries(parts, block * kPanel, b, head); });
    }
    call.write_keys(tiles.front(), b, run.kv_head);
  }
}

}  // namespace

template <typename I, typename E>
void CpuFlashAttention::backward_in(const at::Tensor& d_o, const at::Tensor& q, const at::Tensor& k,
                                    const at::Tensor& v, const AttentionOutput& saved,
                                    const AttentionSpec& spec, const AttentionGradients& gradients) {
  std::vector<QueryTiles> queries;
  queries.reserve(spec.keys->samples.size());
  for (size_t sample = 0; sample < spec.keys->samples.size(); ++sample)
    queries.emplace_back(*spec.keys, static_cast<int64_t>(sample), q.size(1));
  const BackwardCall<I, E> call{.d_o = d_o,
                                .q = q,
                                .k = k,
                                .v = v,
                                .o = saved.o,
                                .lse = saved.lse.contiguous(),
                                .gradients = gradients,
                                .z = FlashSizes(q.size(1), k.size(1), q.size(3), sizeof(E)),
                                .queries = std::move(queries),
                                .runs = runs_of_heads(spec, k.size(2)),
                                .math = math_,
                                .units = units(),
                                .rule = score_rule(spec)};
  const int workers = attention_threads();
  if (static_cast<int>(threads_.size()) < workers) threads_.resize(workers);
  if (call.tasks() % workers == 0 || call.tasks() >= 4 * workers)
    share_kv_heads(call, threads_, workers);
  else
    share_key_blocks(call, threads_, workers);
}

#define TRIREME_BACKWARD(I, E)                                                                            \
  template void CpuFlashAttention::backward_in<I, E>(                                                     \
      const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const AttentionOutput&, \
      const AttentionSpec&, const AttentionGradients&);
TRIREME_BACKWARD(float, float)
TRIREME_BACKWARD(at::BFloat16, float)
TRIREME_BACKWARD(at::Half, float)
TRIREME_BACKWARD(at::BFloat16, at::BFloat16)

}  // namespace trireme
