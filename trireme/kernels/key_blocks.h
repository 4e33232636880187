// A long forward of dense attention as calls of blocks that a GPU's cache holds. A kernel streams a head's
// keys past every tile of queries, and the tiles do not go in step: keys that outgrow the cache come from
// memory each time. On an H200 cuDNN's forward falls from 597 TFLOP/s at 96K tokens to 509 at 1M; in blocks
// it has 594 there (docs/benchmarks/history/2026-11-26-gpu-long.md). Its backward holds keys and streams
// queries, and does not fall.
//
//   q rows of block i, keys of block j    -> o_ij, lse_ij     j <= i where causal, a square on the diagonal
//   o_i0, o_i1, ..                        -> o_i = sum over j of exp(lse_ij - lse_i) o_ij, in fp32
//
// The merge is that of ring attention (arXiv 2310.01889), over the blocks of one rank.
#pragma once

#include <functional>

#include "trireme/kernels/local_attention.h"

namespace trireme {

// q [b, s, h, D], k and v [b, t, kv, D] -> o, lse; every query sees a key. Causal: s = t.
using DenseForward = std::function<AttentionOutput(const at::Tensor& q_bshD, const at::Tensor& k_btkD,
                                                   const at::Tensor& v_btkD, bool causal)>;

// The output of `forward` of all rows and keys, o of q's dtype; one call of it where there are no more than
// `most_keys` keys. Each o_ij is rounded to the dtype that `forward` gives.
AttentionOutput forward_in_key_blocks(const at::Tensor& q_bshD, const at::Tensor& k_btkD,
                                      const at::Tensor& v_btkD, bool causal, int64_t most_keys,
                                      const DenseForward& forward);

}  // namespace trireme
