// Ring attention (arXiv 2310.01889): each of R ring ranks keeps its queries, and the keys and values travel
// round, the next block in flight while this one computes. With the zig-zag order of base/sample_layout.h
// causal work is equal for all.
//
//   forward    for t in 0 .. R-1:  kv = block of rank (r - t);  send kv on;
//                                  (o, lse) merged with attention over kv
//              merge: lse' = log(exp(lse) + exp(lse_t));  o' = o exp(lse - lse') + o_t exp(lse_t - lse') fp32
//   backward   for t in 0 .. R-1:  dq += ..., and what the block gets from these queries joins its traveller
//              dk, dv (fp32), which goes on with the block and after R - 1 hops is back at its owner
//
// On the wire, elements of one rank with even shares, n = S / R tokens: forward 2 K D n (R - 1); backward as
// many for k and v, and as many in fp32 for dk and dv. Sums run in the order of the ring: the same bits every
// time.
#pragma once

#include "trireme/attention/sequence_attention.h"

namespace trireme {

class RingAttention final : public SequenceAttention {
 public:
  RingAttention(Group& ring, LocalAttention& local) : ring_(ring), local_(local) {}
  std::string name() const override;
  AttentionOutput forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const SequenceSpec& spec) override;
  AttentionGradients backward(const at::Tensor& d_o, const at::Tensor& q, const at::Tensor& k,
                              const at::Tensor& v, const AttentionOutput& saved,
                              const SequenceSpec& spec) override;

 private:
  Group& ring_;
  LocalAttention& local_;
};

// Merges attention over other keys into `sum`, both fp32 (or fp64): o [B, n, H, D], lse [B, H, n]. A query
// that saw nothing so far, or in `block`, has lse minus infinity there.
void merge_attention(AttentionOutput& sum, const AttentionOutput& block);

}  // namespace trireme
