// Ulysses' attention in C head chunks, each of a share of every rank's heads (UPipe, arXiv 2602.21196, and
// FPDT, arXiv 2408.16978, pipeline in the same spirit): the exchange of the next chunk runs while this one
// computes, and what lies by heads is 1/C of what it was.
//
//   chunk c    exchange of chunk c + 1 begun | q_BShcD, k, v -> attention -> o_BShcD | o of chunk c begun,
//              o of chunk c - 1 written to its heads of the result
//
// Which rank computes which head is as without chunks, so the numbers are the same. A key/value head whose
// queries fall into two chunks travels once: it stays from the first, and its gradients leave with the last.
#pragma once

#include <memory>

#include "trireme/attention/ulysses.h"

namespace trireme {

// As make_sharded_attention(), which takes this for `head_chunks` of 2 or more: not collective, and `ulysses`
// and what `sequence` refers to outlive the result. Throws InternalError: less than one chunk.
std::unique_ptr<ShardedAttention> make_chunked_attention(Group& ulysses,
                                                         std::unique_ptr<SequenceAttention> sequence,
                                                         HeadShares heads, ScoreForm scores, int head_chunks);

}  // namespace trireme
