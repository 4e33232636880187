// Sums over ranks, as the exchanges make them.
#include "trireme/attention/exchange_bytes.h"

#include <cstddef>

#include "trireme/base/error.h"

namespace trireme {

namespace {

void check(const SampleLayout& layout, const HeadShares& heads, int rank) {
  TRIREME_ASSERT(heads.ranks() == layout.ulysses, "head shares of ", heads.ranks(), " ranks, layout of ",
                 layout.ulysses, " Ulysses ranks");
  TRIREME_ASSERT(rank >= 0 && rank < layout.ranks(), "rank ", rank, " of ", layout.ranks());
}

// Of one token's k and v (or dk and dv) in all rounds, in elements.
int64_t key_value_elements(const ExchangeExtents& extents, const SampleLayout& layout,
                           const HeadShares& heads, int rank) {
  const HeadRange& share = heads.query.at(static_cast<std::size_t>(layout.ulysses_place(rank)));
  const int64_t group = heads.query_heads / heads.key_value_heads;
  const SequenceLayout rounds{share.size(), extents.head_chunks};
  int64_t used = 0;
  for (int round = 0; round < rounds.ranks; ++round) {
    if (rounds.size(round) == 0) continue;
    const int64_t first = share.begin + rounds.begin(round), last = first + rounds.size(round) - 1;
    used += last / group - first / group + 1;
  }
  return 2 * extents.batch * used * extents.head_dim;
}

}  // namespace

ExchangeBytes operator+(const ExchangeBytes& a, const ExchangeBytes& b) {
  return {a.forward + b.forward, a.backward + b.backward};
}

UlyssesExchangeBytes ulysses_exchange_bytes(const ExchangeExtents& extents, const SampleLayout& layout,
                                            const HeadShares& heads, int rank) {
  check(layout, heads, rank);
  const SequenceLayout within = layout.within(layout.ring_place(rank));
  const int mine = layout.ulysses_place(rank);
  const int64_t here = within.size(mine), elsewhere = within.tokens - here;
  int64_t my_query = 0, my_packed = 0, query_of_others = 0, packed_of_others = 0;
  for (int p = 0; p < layout.ulysses; ++p) {
    const auto at = static_cast<std::size_t>(p);
    const int64_t query = heads.query.at(at).size(), packed = query + 2 * heads.key_value.at(at).size();
    (p == mine ? my_query : query_of_others) += query;
    (p == mine ? my_packed : packed_of_others) += packed;
  }
  const int64_t head_bytes = extents.batch * extents.head_dim * extents.element_bytes;
  return {.qkv_to_heads = here * packed_of_others * head_bytes,
          .o_to_seq = elsewhere * my_query * head_bytes,
          .do_to_heads = here * query_of_others * head_bytes,
          .dqkv_to_seq = elsewhere * my_packed * head_bytes};
}

ExchangeBytes ring_exchange_bytes(const ExchangeExtents& extents, const SampleLayout& layout,
                                  const HeadShares& heads, int rank) {
  check(layout, heads, rank);
  if (layout.ring == 1) return {};
  const int place = layout.ring_place(rank);
  // A rank hands on its own block first; the one that comes last began at the next place and stays here. The
  // sums of a block's gradients begin at the next place, and end where the block lives.
  const int64_t passed_on = layout.tokens - layout.ring_tokens((place + 1) % layout.ring);
  const int64_t summed = layout.tokens - layout.ring_tokens(place);
  const int64_t row = key_value_elements(extents, layout, heads, rank);
  const int64_t keys_and_values = passed_on * row * extents.element_bytes;
  return {keys_and_values, keys_and_values + summed * row * extents.sum_bytes};
}

ExchangeBytes gather_exchange_bytes(const ExchangeExtents& extents, const SampleLayout& layout,
                                    const HeadShares& heads, int rank) {
  check(layout, heads, rank);
  if (layout.ring == 1) return {};
  const int64_t here = layout.ring_tokens(layout.ring_place(rank));
  const int64_t row = key_value_elements(extents, layout, heads, rank);
  const int64_t keys_and_values = here * (layout.ring - 1) * row * extents.element_bytes;
  return {keys_and_values, keys_and_values + (layout.tokens - here) * row * extents.sum_bytes};
}

}  // namespace trireme
