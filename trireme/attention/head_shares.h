// Who computes which heads: H query heads over P ranks in contiguous, possibly uneven shares, and for each
// rank the contiguous range of key/value heads that its queries use. 6 query over 3 key/value heads on 2
// ranks: queries {0,1,2}, {3,4,5}; key/value {0,1}, {1,2}. Arithmetic only: the planner uses it too.
#pragma once

#include <cstdint>
#include <vector>

namespace trireme {

struct HeadRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

struct HeadShares {
  int64_t query_heads = 0;           // H
  int64_t key_value_heads = 0;       // K, divides H
  std::vector<HeadRange> query;      // of each rank
  std::vector<HeadRange> key_value;  // of each rank; ranges of neighbours may overlap

  int ranks() const { return static_cast<int>(query.size()); }
  // Whether some key/value head is in the ranges of several ranks.
  bool shares_key_values() const;
  // For rank r: local key/value head (0 is key_value[r].begin) of each of its query heads.
  std::vector<int> kv_of_query(int rank) const;
};

// The first H % P ranks take one head more. Throws ConfigError: K does not divide H; P > H (says that at most
// H ranks can share the heads).
HeadShares share_heads(int64_t query_heads, int64_t key_value_heads, int ranks);

// Throws ConfigError if there are more ranks than query heads.
void check_one_rank_a_head(int64_t query_heads, int64_t ranks);

constexpr int64_t most_heads_of_rank(int64_t query_heads, int64_t ranks) {
  return (query_heads + ranks - 1) / ranks;
}

// One of the chunks in which a rank computes its share (head_chunks.h). Each member names ranges of every
// rank; the query ranges are the same in all.
struct HeadChunk {
  HeadShares needed;    // what attention takes
  HeadShares arriving;  // key/value heads that come with this chunk
  HeadShares leaving;   // key/value heads whose gradients leave with it
};

// Every rank's share in `chunks` ranges that differ by at most one head; some are empty where a rank has
// fewer.
std::vector<HeadChunk> cut_heads(const HeadShares& heads, int chunks);

}  // namespace trireme
