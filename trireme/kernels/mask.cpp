// From descriptions of a mask to ranges of rows.
#include "trireme/kernels/mask.h"

#include <algorithm>
#include <cstdlib>

#include "trireme/base/error.h"

namespace trireme {

namespace {

// How many rows of `spans` lie before a position; positions must not fall from call to call.
class RowCounter {
 public:
  explicit RowCounter(const TokenSpans& spans) : spans_(spans) {}
  int64_t before(int64_t position) {
    while (at_ < spans_.size() && spans_[at_].end <= position) rows_ += spans_[at_++].size();
    if (at_ == spans_.size()) return rows_;
    return rows_ + std::max<int64_t>(0, position - spans_[at_].begin);
  }

 private:
  const TokenSpans& spans_;
  size_t at_ = 0;
  int64_t rows_ = 0;
};

KeyRanges ranges_of(const LayerMask& mask, const Documents& documents, const TokenSpans& queries,
                    const TokenSpans& keys) {
  KeyRanges ranges;
  const auto rows = static_cast<size_t>(size_of(queries));
  ranges.begin.reserve(rows);
  ranges.end.reserve(rows);
  RowCounter first(keys), last(keys);
  const std::vector<int64_t>& cu_seqlens = documents.cu_seqlens();
  size_t document = 1;  // its end in cu_seqlens
  for (const TokenSpan& span : queries)
    for (int64_t position = span.begin; position < span.end; ++position) {
      while (cu_seqlens[document] <= position) ++document;
      int64_t begin = cu_seqlens[document - 1];
      int64_t end = mask.causality == Causality::causal ? position + 1 : cu_seqlens[document];
      if (mask.window > 0) {
        begin = std::max(begin, position - mask.window + 1);
        end = std::min(end, position + mask.window);
      }
      ranges.begin.push_back(first.before(begin));
      ranges.end.push_back(last.before(end));
    }
  return ranges;
}

}  // namespace

bool SparseBlocks::keeps(int64_t query_block, int64_t key_block, Causality causality) const {
  if (causality == Causality::causal && key_block > query_block) return false;
  if (std::abs(query_block - key_block) < local_blocks || key_block < global_blocks) return true;
  if (causality == Causality::full && query_block < global_blocks) return true;
  return stride_blocks > 0 && (key_block + 1) % stride_blocks == 0;
}

double SparseBlocks::kept_share(int64_t tokens, Causality causality) const {
  if (dense()) return 1;
  const int64_t blocks = (tokens + block_tokens - 1) / block_tokens;
  int64_t kept = 0, all = 0;
  for (int64_t i = 0; i < blocks; ++i) {
    all += causality == Causality::causal ? i + 1 : blocks;
    for (const RowRange& range : kept_blocks(i, blocks, causality)) kept += range.end - range.begin;
  }
  return all > 0 ? static_cast<double>(kept) / static_cast<double>(all) : 1;
}

std::vector<RowRange> SparseBlocks::kept_blocks(int64_t i, int64_t blocks, Causality causality) const {
  const bool full = causality == Causality::full;
  const int64_t end = full ? blocks : std::min(blocks, i + 1);
  if (full && i < global_blocks) return {{0, blocks}};
  std::vector<RowRange> kept;
  const int64_t local_begin = std::max<int64_t>(0, i - local_blocks + 1),
                local_end = std::min(end, i + local_blocks);
  int64_t decided = 0;  // the blocks before it
  const auto take = [&](int64_t from, int64_t to) {
    from = std::max(from, decided);
    if (from >= to) return;
    kept.push_back({from, to});
    decided = to;
  };
  const auto take_strided = [&](int64_t to) {
    if (stride_blocks == 0) return;
    for (int64_t j = (decided + stride_blocks) / stride_blocks * stride_blocks - 1; j < to;
         j += stride_blocks)
      take(j, j + 1);
  };
  take(0, std::min(global_blocks, end));
  take_strided(local_begin);
  take(local_begin, local_end);
  take_strided(end);
  return kept;
}

bool VisibleKeys::none() const {
  for (const KeyRanges& ranges : samples)
    for (int64_t row = 0; row < ranges.queries(); ++row)
      if (ranges.sees_a_key(row)) return false;
  return true;
}

int64_t VisibleKeys::pairs(int64_t sample) const {
  const KeyRanges& ranges = of(sample);
  int64_t pairs = 0;
  for (size_t row = 0; row < ranges.begin.size(); ++row) pairs += ranges.end[row] - ranges.begin[row];
  return pairs;
}

std::shared_ptr<const VisibleKeys> visible_keys(const LayerMask& mask,
                                                const std::vector<Documents>& documents, int64_t tokens,
                                                const TokenSpans& queries, const TokenSpans& keys) {
  TRIREME_ASSERT(mask.window >= 0, "window: got ", mask.window);
  auto visible = std::make_shared<VisibleKeys>();
  const TokenSpans whole = tokens > 0 ? TokenSpans{{0, tokens}} : TokenSpans{};
  TRIREME_ASSERT(mask.sparse.dense() || (queries == whole && keys == whole),
                 "sparse blocks on a part of the sample");
  visible->sparse = mask.sparse;
  visible->causality = mask.causality;
  visible->key_rows = size_of(keys);
  for (size_t sample = 0; sample < std::max<size_t>(1, documents.size()); ++sample) {
    const Documents of_sample = documents_of(documents, sample, tokens);
    TRIREME_ASSERT(of_sample.tokens() == tokens, "documents of ", of_sample.tokens(),
                   " tokens in a sample of ", tokens);
    visible->samples.push_back(ranges_of(mask, of_sample, queries, keys));
  }
  return visible;
}

std::shared_ptr<const VisibleKeys> causal_keys(int64_t tokens, int64_t window) {
  const TokenSpans whole = tokens > 0 ? TokenSpans{{0, tokens}} : TokenSpans{};
  return visible_keys({.window = window}, {}, tokens, whole, whole);
}

std::vector<RowRange> key_intervals(const VisibleKeys& keys, int64_t sample, int64_t row, int64_t row_end) {
  const KeyRanges& ranges = keys.of(sample);
  // Rows that see nothing have an empty range, which must not widen that of the others.
  int64_t first = row, last = row_end - 1;
  while (first < row_end && !ranges.sees_a_key(first)) ++first;
  if (first == row_end) return {};
  while (!ranges.sees_a_key(last)) --last;
  const int64_t begin = ranges.begin[static_cast<size_t>(first)], end = ranges.end[static_cast<size_t>(last)];
  if (keys.sparse.dense()) return {{begin, end}};
  const int64_t block = keys.sparse.block_tokens, blocks = (keys.key_rows + block - 1) / block;
  std::vector<RowRange> kept;  // of all query blocks that the rows touch
  for (int64_t i = row / block; i * block < row_end; ++i) {
    const std::vector<RowRange> of_block = keys.sparse.kept_blocks(i, blocks, keys.causality);
    kept.insert(kept.end(), of_block.begin(), of_block.end());
  }
  std::sort(kept.begin(), kept.end(), [](const RowRange& a, const RowRange& b) { return a.begin < b.begin; });
  std::vector<RowRange> intervals;
  for (const RowRange& range : kept) {
    const int64_t from = std::max(begin, range.begin * block), to = std::min(end, range.end * block);
    if (from >= to) continue;
    if (!intervals.empty() && intervals.back().end >= from)
      intervals.back().end = std::max(intervals.back().end, to);
    else
      intervals.push_back({from, to});
  }
  return intervals;
}

}  // namespace trireme
