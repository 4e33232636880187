// Cuts a mask into calls of FlashAttention-2 (arXiv 2307.08691), whose mask is a band. Of R query rows and n
// key rows, row i has its diagonal at key d = n - R + i and sees
//
//   keys [max(0, d - left), min(n, d + right + 1))
//
//   full       no bounds
//   causal     no left bound, right 0; aligned at the end, so there may be more keys than rows
//   window W   left W - 1, and right 0 (causal) or W - 1 (full attention)
//
//   ranges (mask.h)  ->  runs: blocks of query rows that are one band  ->  calls: runs that one call can take
//
// One band holds the first rows of a window, whose keys begin together, and those after: half the calls of
// bands that are plain. What takes one call: the whole sequence, a part of a zig-zag ring, and all packed
// documents of all samples (cu_seqlens), with a window or without; but long ones can have calls of their own
// (long_documents.h). No torch here.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/base/round_up.h"
#include "trireme/kernels/long_documents.h"
#include "trireme/kernels/mask.h"

namespace trireme {

inline constexpr int64_t kUnbounded = -1;

struct Band {
  int64_t left = kUnbounded;
  int64_t right = kUnbounded;
  bool full() const { return left == kUnbounded && right == kUnbounded; }
  bool causal() const { return left == kUnbounded && right == 0; }
  bool operator==(const Band&) const = default;
};

// Query rows [q, q_end) and key rows [k, k_end) of one sample, which are a band. Where a bound is missing,
// one that hides nothing does as well: left of keys() - 1 or more, right of rows() - 1 or more.
// FlashAttention replaces a missing right bound beside a left one, and a right bound of keys() or more, by
// keys() (set_params_fprop in flash_api.cpp): a run with a left bound alone has at most keys() + 1 rows.
struct MaskRun {
  int64_t q = 0;
  int64_t q_end = 0;
  int64_t k = 0;
  int64_t k_end = 0;
  Band band;
  int64_t rows() const { return q_end - q; }
  int64_t keys() const { return k_end - k; }
  bool operator==(const MaskRun&) const = default;
};

// Ascending in rows; rows that see nothing are in no run, all others in one. Takes time in proportion to the
// rows. Throws InternalError: ranges whose ends fall.
std::vector<MaskRun> mask_runs(const KeyRanges& ranges);

// One call: query rows [q, q_end) and key rows [k, k_end) of samples [sample, sample_end). Dense: each sample
// is one run. Else its rows, sample after sample, are cut into segments, each of which is a band: query rows
// [cu_q[i], cu_q[i + 1]), key rows [cu_k[i], cu_k[i + 1]). Rows that see nothing are in segments without
// keys, and keys that nobody sees in segments without rows, so that segments cover all.
struct MaskCall : MaskRun {
  int64_t sample = 0;
  int64_t sample_end = 0;
  std::vector<int32_t> cu_q;  // empty: dense
  std::vector<int32_t> cu_k;
  int64_t longest_q = 0;  // rows of a segment
  int64_t longest_k = 0;
  bool dense() const { return cu_q.empty(); }
};

// FlashAttention counts segments in the second dimension of a CUDA grid.
inline constexpr int64_t kMostSegments = 65535;

// Extents of the fp32 dq that its backward on CUDA allocates (libtorch's flash_api.cpp). Calls are cut by
// them, and the memory forecast counts by them.
inline constexpr int64_t kDqRowBlock = 128;
constexpr int64_t padded_dq_width(int64_t width) {
  return round_up(width, width <= 128 ? 32 : 64);
}

// The calls that compute a whole mask, none where no query sees a key. Each query row has keys in at most
// one; key rows can be in several. Causal documents of `least_alone` tokens or more, whose queries and keys
// are all here, are dense calls: of all their tokens where `lengths` has that length, else of tokens_of_graph.
// Dense calls come last: before them, the rows of theirs may lie in segments without keys. Throws ConfigError:
// more rows in a call than 32 bits count.
std::vector<MaskCall> mask_calls(const VisibleKeys& keys, int64_t batch,
                                 int64_t most_segments = kMostSegments, int64_t least_alone = kNeverAlone,
                                 DenseLengths lengths = DenseLengths::of_graphs_and_samples);

}  // namespace trireme
