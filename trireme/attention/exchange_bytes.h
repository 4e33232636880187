// How many bytes one rank sends to others in one decoder layer, forward and backward, exactly: uneven shares
// of tokens and heads included, its own share never counted. int64, no torch: the planner and `trireme bench
// comm` use the very same formulas, and tests hold Group::traffic() against them.
//
// B samples of S tokens over U x R ranks (sample_layout.h); n tokens of ring rank r, s of them on Ulysses
// rank u; H query and K key/value heads of D, h_u and k_u of Ulysses rank u (head_shares.h); e bytes of an
// element, f of one that is summed over ring ranks; M hidden width. Beside each the closed form for even
// shares, P ranks and U a divisor of K.
//
//   Ulysses (arXiv 2309.14509, section 3), in all-to-alls                      even shares, B D e times
//     q, k, v to heads        B s D e sum of h_p + 2 k_p over p != u            (S/P) (H + 2K) (P-1)/P
//     o to sequence           B (n - s) D e h_u                                 (S/P) H (P-1)/P
//     do (or o) to heads      B s D e sum of h_p over p != u                    (S/P) H (P-1)/P
//     dq, dk, dv to sequence  B (n - s) D e (h_u + 2 k_u)                       (S/P) (H + 2K) (P-1)/P
//
//   ring (arXiv 2310.01889), a rank's k_u key/value heads, in R - 1 hops       even shares, B D times
//     k, v                    2 B k_u D e sum of n_p over p != r + 1            2 K S (P-1)/P e
//     dk, dv                  2 B k_u D f sum of n_p over p != r                2 K S (P-1)/P f
//   gather (as in Llama 3, arXiv 2407.21783, section 3.3.2)
//     k, v                    2 B k_u D e n                               2 K S (P-1)/P e
//     dk, dv                  2 B k_u D f sum of n_p over p != r                2 K S (P-1)/P f
//   hybrid U x R (arXiv 2405.07719)  Ulysses within a ring rank, and ring with k_u heads: the sum of both
//
//   With C head chunks (head_chunks.h) Ulysses sends the same bytes in more exchanges. A ring, or a gather,
//   runs once a chunk, so that k_u becomes the sum over chunks of the key/value heads that a chunk's queries
//   use: a head whose queries fall into two chunks travels round the ring twice.
#pragma once

#include <cstdint>

#include "trireme/attention/delta_heads.h"
#include "trireme/attention/head_shares.h"
#include "trireme/base/sample_layout.h"

namespace trireme {

// What attention's exchanges depend on beside shares of tokens and heads.
struct ExchangeExtents {
  int64_t batch = 1;          // B
  int64_t head_dim = 0;       // D
  int64_t element_bytes = 2;  // e: q, k, v, o and their gradients
  int64_t sum_bytes = 4;      // f: dk and dv on their way between ring ranks
  int head_chunks = 1;        // C
};

// By one rank, in one layer.
struct ExchangeBytes {
  int64_t forward = 0;
  int64_t backward = 0;
  int64_t both() const { return forward + backward; }
  bool operator==(const ExchangeBytes&) const = default;
};
ExchangeBytes operator+(const ExchangeBytes& a, const ExchangeBytes& b);

// The exchanges that Ulysses is made of, one by one; zero with U = 1. `rank` in [0, U x R).
struct UlyssesExchangeBytes {
  int64_t qkv_to_heads = 0;
  int64_t o_to_seq = 0;
  int64_t do_to_heads = 0;  // as many for o, which travels with it in backward
  int64_t dqkv_to_seq = 0;
  // Of a layer that keeps o and its log-sum-exp: backward exchanges q, k, v again, then (do, o), then dq, dk,
  // dv.
  ExchangeBytes layer() const {
    return {qkv_to_heads + o_to_seq, qkv_to_heads + 2 * do_to_heads + dqkv_to_seq};
  }
};
UlyssesExchangeBytes ulysses_exchange_bytes(const ExchangeExtents& extents, const SampleLayout& layout,
                                            const HeadShares& heads, int rank);

// The same of a DeltaNet's columns and output (column_exchange.h), e bytes of an element; `rank` of all that
// share the layout's tokens.
UlyssesExchangeBytes column_exchange_bytes(const DeltaHeads& heads, const SampleLayout& layout, int64_t batch,
                                           int64_t element_bytes, int rank);

// Between ring ranks, with `heads` over the U Ulysses ranks of each; zero with R = 1. Backward moves k
// and v again. A hybrid's bytes are these and ulysses_exchange_bytes(...).layer().
ExchangeBytes ring_exchange_bytes(const ExchangeExtents& extents, const SampleLayout& layout,
                                  const HeadShares& heads, int rank);
ExchangeBytes gather_exchange_bytes(const ExchangeExtents& extents, const SampleLayout& layout,
                                    const HeadShares& heads, int rank);

}  // namespace trireme
