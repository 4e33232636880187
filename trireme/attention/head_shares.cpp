// Splits query heads into contiguous shares and finds the key/value heads that each share uses.
#include "trireme/attention/head_shares.h"

#include "trireme/base/error.h"

namespace trireme {

std::vector<int> HeadShares::kv_of_query(int rank) const {
  const HeadRange& mine = query.at(rank);
  const int64_t group = query_heads / key_value_heads;
  std::vector<int> map;
  map.reserve(mine.size());
  for (int64_t head = mine.begin; head < mine.end; ++head)
    map.push_back(static_cast<int>(head / group - key_value.at(rank).begin));
  return map;
}

HeadShares share_heads(int64_t query_heads, int64_t key_value_heads, int ranks) {
  if (query_heads < 1 || key_value_heads < 1 || query_heads % key_value_heads != 0)
    throw ConfigError(cat("attention: got ", query_heads, " query heads and ", key_value_heads,
                          " key/value heads, expected both positive and the second a divisor of the first; "
                          "check num_attention_heads and num_key_value_heads of the model"));
  if (ranks < 1) throw ConfigError(cat("ulysses degree: got ", ranks, ", expected at least 1"));
  if (ranks > query_heads)
    throw ConfigError(cat("ulysses degree: got ", ranks, " ranks for ", query_heads,
                          " query heads, expected at most one rank a head; use --ulysses ", query_heads,
                          " or less"));
  HeadShares shares{query_heads, key_value_heads, {}, {}};
  const int64_t base = query_heads / ranks, extra = query_heads % ranks;
  const int64_t group = query_heads / key_value_heads;
  int64_t begin = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const int64_t end = begin + base + (rank < extra ? 1 : 0);
    shares.query.push_back({begin, end});
    shares.key_value.push_back({begin / group, (end - 1) / group + 1});
    begin = end;
  }
  return shares;
}

}  // namespace trireme
