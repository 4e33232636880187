// Which keys each query sees. Causality, windows and packed documents are descriptions; a mask of S x S never
// exists. For the queries of one rank and the keys of one rank, they become a range of key rows for each
// query:
//
//   keys seen from position p, of document [d, e)      causal   [max(d, p - W + 1), p + 1)
//                                                      full     [max(d, p - W + 1), min(e, p + W))
//   rows of them                                       those among the key rows at hand
//
// W is the window (without one, as wide as the document). Rows ascend in position, so what a query sees are
// consecutive rows, and both ends of the ranges grow from query to query: every kernel builds on these two
// facts.
//
// Block-sparse layouts (DeepSpeed-Ulysses, arXiv 2309.14509; local and strided: Sparse Transformers, arXiv
// 1904.10509; global: BigBird, arXiv 2007.14062) keep some blocks of b x b of that. No torch here.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "trireme/base/documents.h"
#include "trireme/base/token_span.h"

namespace trireme {

enum class Causality {
  causal,  // decoders: a query sees itself and what is before
  full,    // encoders: everything in its document
};

// Rows, or blocks of them, [begin, end).
struct RowRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// Query block i keeps key block j when |i - j| < local_blocks, or j < global_blocks, or stride_blocks divides
// j + 1; with full attention also when i < global_blocks (global tokens see everything).
struct SparseBlocks {
  int64_t block_tokens = 0;  // b, a multiple of 64; 0: dense, all blocks are kept
  int64_t local_blocks = 1;
  int64_t global_blocks = 0;
  int64_t stride_blocks = 0;  // 0: none

  bool dense() const { return block_tokens == 0; }
  bool keeps(int64_t query_block, int64_t key_block, Causality causality) const;
  // The key blocks of [0, blocks) that a query block keeps, as ascending ranges that may touch; as many steps
  // as ranges.
  std::vector<RowRange> kept_blocks(int64_t query_block, int64_t blocks, Causality causality) const;
  // The share of the blocks of a sample of `tokens` that dense attention computes and this keeps; 1 when
  // dense.
  double kept_share(int64_t tokens, Causality causality) const;
  bool operator==(const SparseBlocks&) const = default;
};

// Of one layer, for a whole sample.
struct LayerMask {
  Causality causality = Causality::causal;
  int64_t window = 0;  // W; 0: none
  SparseBlocks sparse = {};
  bool operator==(const LayerMask&) const = default;
};

// Key rows [begin[i], end[i]) that query row i sees; both ends never fall.
struct KeyRanges {
  std::vector<int64_t> begin;
  std::vector<int64_t> end;
  int64_t queries() const { return static_cast<int64_t>(begin.size()); }
  bool sees_a_key(int64_t row) const {
    return begin[static_cast<size_t>(row)] < end[static_cast<size_t>(row)];
  }
};

// For one call of a kernel: some query rows, some key rows.
struct VisibleKeys {
  std::vector<KeyRanges> samples;  // one for each sample of the batch, or one for all of them
  SparseBlocks sparse = {};        // of those ranges only what is in these blocks; rows are then positions
  Causality causality = Causality::causal;  // of `sparse`
  int64_t key_rows = 0;

  const KeyRanges& of(int64_t sample) const {
    return samples.size() == 1 ? samples.front() : samples.at(static_cast<size_t>(sample));
  }
  int64_t queries() const { return samples.front().queries(); }
  // No query sees any key: the call may be left out.
  bool none() const;
  // Pairs of query and key that one head computes for sample `sample` (sparse blocks apart).
  int64_t pairs(int64_t sample) const;
};

// Query rows are the tokens of `queries`, key rows those of `keys`, of samples of `tokens` tokens;
// `documents` of each sample, or empty. Throws InternalError: sparse blocks on rows that are not the whole
// sample.
std::shared_ptr<const VisibleKeys> visible_keys(const LayerMask& mask,
                                                const std::vector<Documents>& documents, int64_t tokens,
                                                const TokenSpans& queries, const TokenSpans& keys);
// The whole of samples of one document.
std::shared_ptr<const VisibleKeys> causal_keys(int64_t tokens, int64_t window = 0);

// Rows [begin, end) of keys that are computed for query rows [row, row_end) of a sample: ascending and
// disjoint, their ends cut at nothing finer than sparse blocks. A kernel masks their edges by the ranges
// themselves.
std::vector<RowRange> key_intervals(const VisibleKeys& keys, int64_t sample, int64_t row, int64_t row_end);

}  // namespace trireme
