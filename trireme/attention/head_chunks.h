// Ulysses' attention in C rounds, each for a part of every rank's heads (UPipe, arXiv 2602.21196, and FPDT, arXiv
// 2408.16978, pipeline in the same spirit): the exchange of the next round runs while this one computes, and what lies
// by heads is 1/C of what it was.
//
//   round c    exchange of round c + 1 begun | q_BShcD, k, v -> attention -> o_BShcD | o of round c begun,
//              o of round c - 1 put in its place
//
// Who computes which head is as without rounds, so the numbers are the same. A key/value head whose queries fall into
// two rounds travels once: it stays from the first, and its gradients leave with the last.
#pragma once

#include <vector>

#include "trireme/attention/ulysses.h"

namespace trireme {

// One round. Each names ranges of every rank; the query ranges are the same in all.
struct HeadChunk {
  HeadShares needed;    // what attention takes
  HeadShares arriving;  // key/value heads that come with this round
  HeadShares leaving;   // key/value heads whose gradients leave with it
};

// Every rank's share in `chunks` parts that differ by at most one head; some are empty where a rank has fewer.
std::vector<HeadChunk> cut_heads(const HeadShares& heads, int chunks);

// ulysses_attention_forward and _backward in over.head_chunks rounds. Collective.
UlyssesAttention chunked_attention_forward(const ShardedAttention& over, const HeadShares& heads,
                                           SequenceSpec spec, const at::Tensor& qkv_BsND);
at::Tensor chunked_attention_backward(const ShardedAttention& over, const HeadShares& heads,
                                      SequenceSpec spec, const at::Tensor& do_BsHD,
                                      const at::Tensor& qkv_BsND, const UlyssesAttention& saved);

}  // namespace trireme
