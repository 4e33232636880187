// Ulysses sequence parallelism (arXiv 2309.14509): each of P ranks holds s tokens and all heads; an
// all-to-all trades sequence for heads before attention, and another trades back after it.
//
//   forward    qkv_BsND --seq_to_heads--> q_BShD, k_BSkD, v_BSkD --attention--> o_BShD --heads_to_seq--> o_BsHD
//   backward   do_BsHD --seq_to_heads--> do_BShD --attention--> dq, dk, dv --heads_to_seq--> dqkv_BsND
//
// S are the tokens of the group's ring place: the whole sequence, unless ring attention stands between the exchanges
// (sequence_attention.h; the two together: USP, arXiv 2405.07719).
//
// N = H + 2K heads packed [queries | keys | values], so that q, k and v travel in one exchange. A rank
// computes a contiguous, possibly uneven share of the query heads and receives every key/value head that they
// use (head_shares.h); the gradients of a key/value head used by several ranks are summed at its owner, the
// token's rank. What is received lies token by token, so that q, k, v and do are views of the receive buffer,
// for any B and P. With one rank nothing is copied: the results are views of the input (dq, dk, dv alone are
// joined into one tensor).
#pragma once

#include "trireme/attention/head_shares.h"
#include "trireme/attention/sequence_attention.h"
#include "trireme/base/sequence_layout.h"
#include "trireme/comm/group.h"

namespace trireme {

struct UlyssesShape {
  SequenceLayout layout;  // S tokens over P = group size ranks
  HeadShares heads;       // H query and K key/value heads over P ranks
};

// The three tensors that local attention takes; views of one packed buffer.
struct HeadsQkv {
  at::Tensor q;  // [B, S, h, D]
  at::Tensor k;  // [B, S, k, D]
  at::Tensor v;  // [B, S, k, D]
};

// qkv [B, s, H + 2K, D] -> this rank's heads of the whole sequence. One all-to-all. Collective.
HeadsQkv seq_to_heads_qkv(Group& group, const UlyssesShape& shape, const at::Tensor& qkv_BsND);
// The adjoint: gradients of q, k, v of this rank's heads -> [B, s, H + 2K, D]; a key/value head's gradients
// from all its users are summed in fp32 in rank order. One all-to-all. Collective.
at::Tensor heads_to_seq_qkv(Group& group, const UlyssesShape& shape, const AttentionGradients& gradients);

// o [B, S, h, D] -> [B, s, H, D], and its adjoint. One all-to-all each. Collective.
at::Tensor heads_to_seq(Group& group, const UlyssesShape& shape, const at::Tensor& o_BShD);
at::Tensor seq_to_heads(Group& group, const UlyssesShape& shape, const at::Tensor& do_BsHD);
// do and o packed in one exchange, for a backward that kept o_BsHD rather than o_BShD: {do_BShD, o_BShD}.
// Collective.
std::pair<at::Tensor, at::Tensor> seq_to_heads_pair(Group& group, const UlyssesShape& shape,
                                                    const at::Tensor& do_BsHD, const at::Tensor& o_BsHD);

// Who shares a sample: the ranks of one ring place by Ulysses, the places by `attention`.
struct ShardedAttention {
  Group& ulysses;
  SequenceAttention& attention;
  int head_chunks = 1;  // more: head_chunks.h
};

// The whole of attention over all ranks that share a sample.
struct UlyssesAttention {
  at::Tensor o;    // [B, s, H, D]
  at::Tensor lse;  // [B, h, S] of this rank's heads
};

// The head map of `spec` is filled in for this rank. Two all-to-alls, and those of `attention`. Collective.
UlyssesAttention ulysses_attention_forward(const ShardedAttention& over, const HeadShares& heads,
                                           SequenceSpec spec, const at::Tensor& qkv_BsND);
// -> dqkv [B, s, N, D]. Exchanges q, k, v again rather than keeping them: three all-to-alls, and those of
// `attention`. Collective.
at::Tensor ulysses_attention_backward(const ShardedAttention& over, const HeadShares& heads,
                                      SequenceSpec spec, const at::Tensor& do_BsHD,
                                      const at::Tensor& qkv_BsND, const UlyssesAttention& saved);

}  // namespace trireme
