// Divides S tokens among P ranks: each rank has one contiguous share. Shares differ by at most one token, so
// any length fits any number of ranks without padding; or they are those that a caller already has. A share
// may be empty (S < P).
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

namespace trireme {

struct SequenceLayout {
  int64_t tokens = 0;               // S, of one sample
  int ranks = 1;                    // P
  std::vector<int64_t> given = {};  // the share of each rank, where they are not even ones

  // Even shares: the first S % P ranks hold one token more.
  int64_t begin(int rank) const {
    if (!given.empty()) return std::accumulate(given.begin(), given.begin() + rank, int64_t{0});
    const int64_t base = tokens / ranks, extra = tokens % ranks;
    return rank * base + (rank < extra ? rank : extra);
  }
  int64_t size(int rank) const { return begin(rank + 1) - begin(rank); }
  std::vector<int64_t> sizes() const {
    std::vector<int64_t> all;
    all.reserve(static_cast<std::size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) all.push_back(size(rank));
    return all;
  }
};

}  // namespace trireme
