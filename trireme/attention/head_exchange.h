// The two all-to-alls of Ulysses, for any choice of heads: one trades sequence for heads, the other trades
// back. Each may go on while the caller computes.
//
//   to heads      x_BsHD slices for each rank  ->  [B, S, n, D]             n: this rank's heads
//   to sequence   x_BSnD                       ->  [B, s, n_p, D] of each rank p
//
// On the wire a block is token-major, [tokens, B, heads, D], so that blocks received in rank order are the
// whole sequence without unpacking.
#pragma once

#include <vector>

#include <ATen/ATen.h>

#include "trireme/attention/head_shares.h"
#include "trireme/base/sequence_layout.h"
#include "trireme/comm/collectives.h"
#include "trireme/comm/group.h"

namespace trireme {

// The three tensors that local attention takes; views of one packed tensor, or apart.
struct HeadsQkv {
  at::Tensor q;  // [B, S, h, D]
  at::Tensor k;  // [B, S, k, D]
  at::Tensor v;  // [B, S, k, D]
};
HeadsQkv split_qkv(const at::Tensor& packed, int64_t query_heads, int64_t kv_heads);

// An exchange to heads under way.
struct ToHeads {
  PendingRows rows;
  int64_t tokens, batch, heads, width;
  // A view [B, S, heads, D] of the receive buffer. Once.
  at::Tensor wait();
};

// `slices[p]`: what rank p gets, as views [B, s, some heads, D]. Collective.
ToHeads begin_slices_to_heads(Group& group, const SequenceLayout& layout,
                              const std::vector<std::vector<at::Tensor>>& slices);
// q, k and v of all heads: [B, s, H, D] and twice [B, s, K, D] -> packed, [B, S, h + 2k, D]. Collective.
ToHeads begin_qkv_to_heads(Group& group, const SequenceLayout& layout, const HeadShares& heads,
                           const HeadsQkv& all);
// Several tensors [B, s, H, D] as one message: n of them -> [B, S, n h, D]. Collective.
ToHeads begin_queries_to_heads(Group& group, const SequenceLayout& layout, const HeadShares& heads,
                               const std::vector<at::Tensor>& each_BsHD);

// An exchange to the sequence under way.
struct ToSequence {
  PendingRows rows;
  std::vector<int64_t> receive;      // elements from each rank
  std::vector<int64_t> head_counts;  // of each rank
  int64_t tokens, batch, width;
  // For each rank p a view [B, s, head_counts[p], D] of the receive buffer. Once.
  std::vector<at::Tensor> wait();
};

// How many heads of do or o, and of packed q, k and v, each rank computes.
std::vector<int64_t> query_counts(const HeadShares& heads);
std::vector<int64_t> packed_counts(const HeadShares& heads);

// `x` [B, S, head_counts[this rank], D]. Collective.
ToSequence begin_to_sequence(Group& group, const SequenceLayout& layout,
                             const std::vector<int64_t>& head_counts, const at::Tensor& x);

}  // namespace trireme
