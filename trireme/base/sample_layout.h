// Which tokens of a sample lie on which of the U x R ranks that share it: U Ulysses ranks (neighbours) in
// each of R ring ranks.
//
//   R = 1     contiguous shares: rank u holds share u of U
//   R > 1     zig-zag: the sample is cut into 2R chunks, and ring rank r holds chunks r and 2R - 1 - r, so
//             that causal attention is equal work for all; its U ranks hold contiguous shares of the two
//             together
//
//   U = 1, R = 2:   rank 0  [0 . . 3]   rank 1  [. 1 2 .]
//
// Shares and chunks differ by at most one token, so any length fits any number of ranks without padding.
// Without a ring, a caller from outside may give the shares that its ranks hold already. The order is that of
// Llama 3 (arXiv 2407.21783, section 3.3.2). No torch here.
#pragma once

#include <cstdint>

#include "trireme/base/sequence_layout.h"
#include "trireme/base/token_span.h"

namespace trireme {

// Ranks that share a sample, by axis.
struct SequenceDegrees {
  int ulysses = 1;
  int ring = 1;
};

struct SampleLayout {
  int64_t tokens = 0;               // S
  int ulysses = 1;                  // U
  int ring = 1;                     // R
  std::vector<int64_t> given = {};  // as in SequenceLayout; only where R is 1

  int ranks() const { return ulysses * ring; }
  int ring_index(int rank) const { return rank / ulysses; }
  int ulysses_rank(int rank) const { return rank % ulysses; }

  // What the Ulysses ranks of one ring rank hold together.
  TokenSpans ring_spans(int ring_index) const;
  int64_t ring_tokens(int ring_index) const { return size_of(ring_spans(ring_index)); }
  // How they share it: tokens are counted along ring_spans.
  SequenceLayout within(int ring_index) const { return {ring_tokens(ring_index), ulysses, given}; }

  // What one rank holds, in the order in which it holds it; no span is empty.
  TokenSpans spans(int rank) const;
  int64_t size(int rank) const { return within(ring_index(rank)).size(ulysses_rank(rank)); }

  // Every rank holds as many tokens as any other.
  bool divisible() const { return tokens % unit() == 0; }
  // The lengths that are divisible are its multiples.
  int64_t unit() const { return ring == 1 ? ulysses : int64_t{2} * ulysses * ring; }
  // Every rank holds a token, and with --strict_divisible as many as any other.
  bool is_possible(bool strict_divisible) const {
    return tokens >= ranks() && (!strict_divisible || divisible());
  }

  bool operator==(const SampleLayout&) const = default;
};

// What a run refuses before it begins, and the engine at each batch, in the same words. ConfigError: fewer
// tokens than ranks.
void check_a_token_for_each_rank(const SampleLayout& layout);
// For --strict_divisible. ConfigError: not divisible; names the nearest lengths that are.
void check_divisible(const SampleLayout& layout);

}  // namespace trireme
