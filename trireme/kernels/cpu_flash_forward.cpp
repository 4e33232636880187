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
#include "trireme/kernels/pack_panels.h"

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

// Up to two query heads of one key/value head x a block of up to 64 rows.
struct Stack {
  int64_t batch;
  HeadRun run;
  int64_t row;
  int64_t used_rows;
  int64_t rows() const { return (run.end - run.begin) * kPanel; }
};

// Of a stack, over the keys so far.
struct RunningSoftmax {
  RunningSoftmax() { row_max.fill(-std::numeric_limits<float>::infinity()); }
  std::array<float, kStackRows> row_max{}, row_sum{}, rescale{};
  bool has_keys = false;
};

// What all stacks of a call share.
struct ForwardCall {
  FlashSizes sizes;
  const TileMath& math;
  ScoreRule rule;
};

// Of a block of 64 tokens, into a head's panels.
template <typename I, typename E>
void pack_keys_and_values(const at::Tensor& k, const at::Tensor& v, const FlashSizes& z, const HeadTask& task,
                          int64_t block, E* packed) {
  const int64_t token = block * kPanel, rows = std::min(kPanel, z.keys - token);
  pack_columns_panel(rows_of<I>(k, task.batch, token, task.run.kv_head), k.stride(1), rows, z.width, z.depth,
                     packed + block * panel_size(z.depth));
  pack_rows_panels(rows_of<I>(v, task.batch, token, task.run.kv_head), v.stride(1), rows, z.width, token,
                   z.padded_keys, packed + z.packed_keys());
}

template <typename I, typename E>
void stack_rows(const at::Tensor& q, const FlashSizes& z, const Stack& stack, E* out) {
  for (int64_t head = stack.run.begin; head < stack.run.end; ++head)
    pack_rows(rows_of<I>(q, stack.batch, stack.row, head), q.stride(1), stack.used_rows, z.width, kPanel,
              z.depth, out + (head - stack.run.begin) * kPanel * z.depth);
}

// Adds keys [key, key + n), whole panels of `packed`, to the stack's o.
template <typename E>
void add_keys(const ForwardCall& call, const RowsOfRanges& ranges, int64_t stacked_rows, const E* packed,
              int64_t key, int64_t n, const StackTiles<E>& tiles, RunningSoftmax& softmax,
              PanelProducts& products) {
  const FlashSizes& z = call.sizes;
  const E* values = packed + z.packed_keys();
  for (int64_t j = 0; j < n; j += kPanel)
    products.run(stacked_rows, kPanel, z.depth, tiles.q, z.depth, packed + (key + j) * z.depth,
                 tiles.scores + j, kScoreStride, false);
  std::array<int32_t, kStackRows> begin{}, end{};
  const bool edge = !ranges.all_see(key, key + n);
  if (edge)
    for (int64_t r = 0; r < stacked_rows; ++r) std::tie(begin[r], end[r]) = ranges.within(r % kPanel, key, n);
  auto* p16 = std::is_same_v<E, float> ? nullptr : reinterpret_cast<uint16_t*>(tiles.p16);
  call.math.softmax({tiles.scores, p16, stacked_rows, n, kScoreStride, edge ? begin.data() : nullptr,
                     edge ? end.data() : nullptr, call.rule, softmax.row_max.data(), softmax.row_sum.data(),
                     softmax.rescale.data()});
  if (softmax.has_keys)
    call.math.scale_rows(tiles.o, stacked_rows, z.columns, z.columns, softmax.rescale.data());
  const E* p = nullptr;
  if constexpr (std::is_same_v<E, float>)
    p = tiles.scores;
  else
    p = tiles.p16;
  for (int64_t panel = 0; panel < z.panels; ++panel)
    products.run(stacked_rows, std::min(kPanel, z.width - panel * kPanel), n, p, kScoreStride,
                 values + panel * panel_size(z.padded_keys) + key * kPanel, tiles.o + panel * kPanel,
                 z.columns, softmax.has_keys);
  softmax.has_keys = true;
}

template <typename I, typename E>
void write_stack(const ForwardCall& call, const Stack& stack, const RowsOfRanges& ranges,
                 const StackTiles<E>& tiles, const RunningSoftmax& softmax, const AttentionOutput& out) {
  const FlashSizes& z = call.sizes;
  const int64_t heads = out.o.size(2);
  for (int64_t r = 0; r < stack.rows(); ++r) {
    const int64_t token = stack.row + r % kPanel, head = stack.run.begin + r / kPanel;
    if (token >= z.queries) continue;
    // Where a query sees no key, tiles.o holds no number. Where it does and the sum is zero, all its
    // scores are minus infinity, and NaN is the answer.
    const bool saw_keys = ranges.sees(r % kPanel);
    const float inverse = 1.0f / softmax.row_sum[r];
    with_elements_of<I>(out.o, [&](auto* o) {
      o += ((stack.batch * z.queries + token) * heads + head) * z.width;
      if (saw_keys)
        write_row(call.math, tiles.o + r * z.columns, inverse, z.width, o);
      else
        std::fill_n(o, z.width, std::remove_pointer_t<decltype(o)>{});
    });
    out.lse.mutable_data_ptr<float>()[(stack.batch * heads + head) * z.queries + token] =
        (softmax.row_max[r] + std::log2(softmax.row_sum[r])) * static_cast<float>(std::log(2.0)) +
        (saw_keys ? inverse * 0 : 0);
  }
}

}  // namespace

template <typename I, typename E>
void CpuFlashAttention::forward_in(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                   const AttentionSpec& spec, const AttentionOutput& out) {
  const ForwardCall call{FlashSizes(q.size(1), k.size(1), q.size(3), sizeof(E)), math_, score_rule(spec)};
  const FlashSizes& z = call.sizes;
  const int64_t key_blocks = z.padded_keys / kPanel, blocks = z.padded_queries / kPanel;
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
    share_items(workers, count * key_blocks, [&](int /*worker*/, int64_t item) {
      const int64_t task = item / key_blocks;
      pack_keys_and_values<I>(k, v, z, tasks[first + task], item % key_blocks,
                              packed + task * z.packed_head());
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
      const auto& [task, run] = stacks[item % stack_count];
      const int64_t row = (blocks - 1 - item / stack_count) * kPanel;
      const Stack stack{tasks[first + task].batch, run, row, std::min(kPanel, z.queries - row)};
      const auto tiles = cut_scratch<StackTiles<E>>(threads_[worker], z);
      stack_rows<I>(q, z, stack, tiles.q);
      const RowsOfRanges ranges(spec.keys->of(stack.batch), row, stack.used_rows);
      RunningSoftmax softmax;
      PanelProducts products(units());
      for (const RowRange& interval : key_intervals(*spec.keys, stack.batch, row, row + stack.used_rows))
        for (int64_t key = interval.begin / kPanel * kPanel, n = 0; key < interval.end; key += n) {
          n = std::min(kForwardKeys, round_up(interval.end, kPanel) - key);
          add_keys<E>(call, ranges, stack.rows(), packed + task * z.packed_head(), key, n, tiles, softmax,
                      products);
        }
      write_stack<I>(call, stack, ranges, tiles, softmax, out);
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
