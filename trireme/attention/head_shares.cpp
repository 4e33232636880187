// Splits query heads into contiguous shares and finds the key/value heads that each share uses.
#include "trireme/attention/head_shares.h"

#include "trireme/base/error.h"
#include "trireme/base/sequence_layout.h"

namespace trireme {

std::vector<int> HeadShares::kv_of_query(int rank) const {
  const HeadRange& share = query.at(rank);
  const int64_t group = query_heads / key_value_heads;
  std::vector<int> map;
  map.reserve(share.size());
  for (int64_t head = share.begin; head < share.end; ++head)
    map.push_back(static_cast<int>(head / group - key_value.at(rank).begin));
  return map;
}

bool HeadShares::shares_key_values() const {
  int64_t of_ranks = 0;
  for (const HeadRange& range : key_value) of_ranks += range.size();
  return of_ranks > key_value_heads;
}

void check_one_rank_a_head(int64_t query_heads, int64_t ranks) {
  if (ranks > query_heads)
    throw ConfigError(cat("--ulysses ", ranks, ": the model has ", query_heads,
                          " query heads, expected at most one rank a head; use --ulysses ", query_heads,
                          " or less, and --ring for more ranks a sequence (--sp N chooses both)"));
}

HeadShares share_heads(int64_t query_heads, int64_t key_value_heads, int ranks) {
  if (query_heads < 1 || key_value_heads < 1 || query_heads % key_value_heads != 0)
    throw ConfigError(cat("attention: got ", query_heads, " query heads and ", key_value_heads,
                          " key/value heads, expected both positive and the second a divisor of the first; "
                          "check num_attention_heads and num_key_value_heads of the model"));
  if (ranks < 1) throw ConfigError(cat("ulysses degree: got ", ranks, ", expected at least 1"));
  check_one_rank_a_head(query_heads, ranks);
  HeadShares shares{query_heads, key_value_heads, {}, {}};
  const SequenceLayout ranges{query_heads, ranks};
  const int64_t group = query_heads / key_value_heads;
  for (int rank = 0; rank < ranks; ++rank) {
    const int64_t begin = ranges.begin(rank), end = ranges.begin(rank + 1);
    shares.query.push_back({begin, end});
    shares.key_value.push_back({begin / group, (end - 1) / group + 1});
  }
  return shares;
}

std::vector<HeadChunk> cut_heads(const HeadShares& heads, int chunks) {
  TRIREME_ASSERT(chunks >= 1, "head chunks: got ", chunks);
  const int64_t group = heads.query_heads / heads.key_value_heads;
  const HeadShares none{heads.query_heads, heads.key_value_heads, {}, {}};
  std::vector<HeadChunk> cut(static_cast<size_t>(chunks), HeadChunk{none, none, none});
  for (const HeadRange& share : heads.query) {
    const SequenceLayout ranges{share.size(), chunks};
    for (int c = 0; c < chunks; ++c) {
      const HeadRange query{share.begin + ranges.begin(c), share.begin + ranges.begin(c + 1)};
      HeadRange needed{query.begin / group,
                       query.size() > 0 ? (query.end - 1) / group + 1 : query.begin / group};
      HeadRange arriving = needed, leaving = needed;
      if (query.size() > 0) {
        if (query.begin > share.begin && (query.begin - 1) / group == needed.begin) ++arriving.begin;
        if (query.end < share.end && query.end / group == needed.end - 1) --leaving.end;
      }
      HeadChunk& chunk = cut[static_cast<size_t>(c)];
      for (HeadShares* shares : {&chunk.needed, &chunk.arriving, &chunk.leaving})
        shares->query.push_back(query);
      chunk.needed.key_value.push_back(needed);
      chunk.arriving.key_value.push_back(arriving);
      chunk.leaving.key_value.push_back(leaving);
    }
  }
  return cut;
}

}  // namespace trireme
