// Forward, for one key/value head and a stack of R rows (up to two query heads x 64 tokens):
//
//   for each block of up to 512 of the keys that the stack sees (mask.h: key_intervals)
//     s_RK = q_RD k_KD'       p = softmax step, o_RD = rescale o + p_RK v_KD
//   o /= sum, lse = ln2 (max + log2 sum)
//
// Keys are packed as panels k'_[D,64], values as panels v_[S,64], once a head, and shared by all threads.
#include <array>
#include <limits>
#include <tuple>

#include "trireme/kernels/attention_arguments.h"
#include "trireme/kernels/cpu_flash_attention.h"

namespace trireme {

namespace {

// A key/value head of one sample, and the stacks of query heads that use it.
struct HeadTask {
  int64_t batch;
  HeadRun run;
};

// What the up to 64 query rows of one block see.
class RowsOfRanges {
 public:
  RowsOfRanges(const KeyRanges& ranges, int64_t row, int64_t rows)
      : begin_(ranges.begin.data() + row), end_(ranges.end.data() + row), rows_(rows) {}
  // Rows beyond the last are not looked at: nothing of them is written.
  bool all_see(int64_t key, int64_t key_end) const {
    return begin_[rows_ - 1] <= key && end_[0] >= key_end;  // both ends grow from row to row
  }
  bool sees(int64_t r) const { return begin_[r] < end_[r]; }
  // Of keys [key, key + n): the columns that row r sees.
  std::pair<int32_t, int32_t> within(int64_t r, int64_t key, int64_t n) const {
    if (r >= rows_) return {0, 0};
    const int64_t begin = std::clamp<int64_t>(begin_[r] - key, 0, n);
    return {static_cast<int32_t>(begin), static_cast<int32_t>(std::clamp<int64_t>(end_[r] - key, begin, n))};
  }

 private:
  const int64_t* begin_;
  const int64_t* end_;
  int64_t rows_;
};

}  // namespace

template <typename I, typename E>
void CpuFlashAttention::forward_in(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                   const AttentionSpec& spec, const AttentionOutput& out) {
  const int64_t queries = q.size(1), tokens = k.size(1), heads = q.size(2), width = q.size(3);
  const FlashSizes z(queries, tokens, width, sizeof(E));
  const int64_t key_blocks = z.padded_keys / kPanel, blocks = z.padded_queries / kPanel;
  const auto log2_scale = static_cast<float>(spec.scale * std::log2(std::exp(1.0)));

  std::vector<HeadTask> tasks;
  for (int64_t b = 0; b < q.size(0); ++b)
    for (const HeadRun& run : runs_of_heads(spec, k.size(2)))
      if (run.end > run.begin) tasks.push_back({b, run});
  const int64_t at_once = packed_heads_at_once<E>(z);
  const int workers = attention_threads();
  if (static_cast<int>(threads_.size()) < workers) threads_.resize(workers);

  for (size_t first = 0; first < tasks.size(); first += at_once) {
    const auto count = std::min<int64_t>(at_once, tasks.size() - first);
    E* packed = shared_.get<E>(count * z.packed_head());
    const auto keys_of = [&](int64_t task) { return packed + task * z.packed_head(); };
    share_items(workers, count * key_blocks, [&](int /*worker*/, int64_t item) {
      const HeadTask& task = tasks[first + item / key_blocks];
      const int64_t block = item % key_blocks, rows = std::min(kPanel, tokens - block * kPanel);
      E* keys = keys_of(item / key_blocks);
      pack_columns_panel(rows_of<I>(k, task.batch, block * kPanel, task.run.kv_head), k.stride(1), rows,
                         width, z.depth, keys + block * panel_size(z.depth));
      pack_rows_panels(rows_of<I>(v, task.batch, block * kPanel, task.run.kv_head), v.stride(1), rows, width,
                       block * kPanel, z.padded_keys, keys + z.packed_keys());
    });

    std::vector<std::pair<int64_t, HeadRun>> stacks;  // task in this round, its query heads
    for (int64_t task = 0; task < count; ++task) {
      const HeadRun& run = tasks[first + task].run;
      for (int64_t head = run.begin; head < run.end; head += kStack)
        stacks.push_back({task, {run.kv_head, head, std::min(head + kStack, run.end)}});
    }
    const auto stack_count = static_cast<int64_t>(stacks.size());
    // The longest rows first, so that no thread is left alone with one at the end.
    share_items(workers, stack_count * blocks, [&](int worker, int64_t item) {
      const int64_t block = blocks - 1 - item / stack_count, row = block * kPanel;
      const auto& [task, run] = stacks[item % stack_count];
      const int64_t batch = tasks[first + task].batch, used = std::min(kPanel, queries - row);
      const E* keys = keys_of(task);
      const E* values = keys + z.packed_keys();
      const int64_t m = (run.end - run.begin) * kPanel;
      const auto tiles = cut_scratch<StackTiles<E>>(threads_[worker], z);
      std::array<float, kStackRows> row_max{}, row_sum{}, rescale{};
      row_max.fill(-std::numeric_limits<float>::infinity());
      for (int64_t head = run.begin; head < run.end; ++head)
        pack_rows(rows_of<I>(q, batch, row, head), q.stride(1), used, width, kPanel, z.depth,
                  tiles.q + (head - run.begin) * kPanel * z.depth);

      const RowsOfRanges ranges(spec.keys->of(batch), row, used);
      bool added = false;  // to o
      for (const RowRange& interval : key_intervals(*spec.keys, batch, row, row + used))
        for (int64_t key = interval.begin / kPanel * kPanel, n = 0; key < interval.end; key += n) {
          n = std::min(kForwardKeys, round_up(interval.end, kPanel) - key);
          for (int64_t j = 0; j < n; j += kPanel)
            panel_gemm(m, kPanel, z.depth, tiles.q, z.depth, keys + (key + j) * z.depth, tiles.scores + j,
                       kForwardKeys, false, units());
          std::array<int32_t, kStackRows> begin{}, end{};
          const bool edge = !ranges.all_see(key, key + n);
          if (edge)
            for (int64_t r = 0; r < m; ++r) std::tie(begin[r], end[r]) = ranges.within(r % kPanel, key, n);
          auto* p16 = std::is_same_v<E, float> ? nullptr : reinterpret_cast<uint16_t*>(tiles.p16);
          math_.softmax({tiles.scores, p16, m, n, kForwardKeys, edge ? begin.data() : nullptr,
                         edge ? end.data() : nullptr, log2_scale, row_max.data(), row_sum.data(),
                         rescale.data()});
          if (added) math_.scale_rows(tiles.o, m, z.columns, z.columns, rescale.data());
          const E* p = nullptr;
          if constexpr (std::is_same_v<E, float>)
            p = tiles.scores;
          else
            p = tiles.p16;
          for (int64_t panel = 0; panel < z.panels; ++panel)
            panel_gemm(m, std::min(kPanel, width - panel * kPanel), n, p, kForwardKeys,
                       values + panel * panel_size(z.padded_keys) + key * kPanel, tiles.o + panel * kPanel,
                       z.columns, added, units());
          added = true;
        }
      for (int64_t r = 0; r < m; ++r) {
        const int64_t token = row + r % kPanel, head = run.begin + r / kPanel;
        if (token >= queries) continue;
        // Where a query sees no key, tiles.o holds no number. Where it does and the sum is zero, all its
        // scores are minus infinity, and NaN is the answer.
        const bool saw_keys = ranges.sees(r % kPanel);
        const float inverse = 1.0f / row_sum[r];
        with_elements_of<I>(out.o, [&](auto* o) {
          o += ((batch * queries + token) * heads + head) * width;
          using Out = std::remove_pointer_t<decltype(o)>;
          for (int64_t d = 0; d < width; ++d)
            o[d] = saw_keys ? static_cast<Out>(tiles.o[r * z.columns + d] * inverse) : Out{};
        });
        out.lse.mutable_data_ptr<float>()[(batch * heads + head) * queries + token] =
            (row_max[r] + std::log2(row_sum[r])) * static_cast<float>(std::log(2.0)) +
            (saw_keys ? inverse * 0 : 0);
      }
      if constexpr (!std::is_same_v<E, float>) release_tiles(units());
    });
  }
}

#define TRIREME_FORWARD(I, E)                                                                                \
  template void CpuFlashAttention::forward_in<I, E>(const at::Tensor&, const at::Tensor&, const at::Tensor&, \
                                                    const AttentionSpec&, const AttentionOutput&);
TRIREME_FORWARD(float, float)
TRIREME_FORWARD(at::BFloat16, float)
TRIREME_FORWARD(at::Half, float)
TRIREME_FORWARD(at::BFloat16, at::BFloat16)

}  // namespace trireme
