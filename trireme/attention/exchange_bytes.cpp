// Sums over ranks, as the exchanges make them.
#include "trireme/attention/exchange_bytes.h"

#include "trireme/base/error.h"

namespace trireme {

namespace {

void check(const SampleLayout& layout, const HeadShares& heads, int rank) {
  TRIREME_ASSERT(heads.ranks() == layout.ulysses, "head shares of ", heads.ranks(), " ranks, layout of ",
                 layout.ulysses, " Ulysses ranks");
  TRIREME_ASSERT(rank >= 0 && rank < layout.ranks(), "rank ", rank, " of ", layout.ranks());
}

// Of one token's k and v (or dk and dv) of all head chunks, in elements.
int64_t key_value_elements(const ExchangeExtents& extents, const SampleLayout& layout,
                           const HeadShares& heads, int rank) {
  int64_t used = 0;
  for (const HeadChunk& chunk : cut_heads(heads, extents.head_chunks))
    used += chunk.needed.key_value[layout.ulysses_rank(rank)].size();
  return 2 * extents.batch * used * extents.head_dim;
}

}  // namespace

ExchangeBytes operator+(const ExchangeBytes& a, const ExchangeBytes& b) {
  return {a.forward + b.forward, a.backward + b.backward};
}

UlyssesExchangeBytes ulysses_exchange_bytes(const ExchangeExtents& extents, const SampleLayout& layout,
                                            const HeadShares& heads, int rank) {
  check(layout, heads, rank);
  const SequenceLayout within = layout.within(layout.ring_index(rank));
  const int ulysses_rank = layout.ulysses_rank(rank);
  const int64_t held_tokens = within.size(ulysses_rank), other_tokens = within.tokens - held_tokens;
  int64_t query_heads = 0, packed_heads = 0, other_query_heads = 0, other_packed_heads = 0;
  for (int p = 0; p < layout.ulysses; ++p) {
    const int64_t query = heads.query[p].size(), packed = query + 2 * heads.key_value[p].size();
    (p == ulysses_rank ? query_heads : other_query_heads) += query;
    (p == ulysses_rank ? packed_heads : other_packed_heads) += packed;
  }
  const int64_t head_bytes = extents.batch * extents.head_dim * extents.element_bytes;
  return {.qkv_to_heads = held_tokens * other_packed_heads * head_bytes,
          .o_to_seq = other_tokens * query_heads * head_bytes,
          .do_to_heads = held_tokens * other_query_heads * head_bytes,
          .dqkv_to_seq = other_tokens * packed_heads * head_bytes};
}

ExchangeBytes ring_exchange_bytes(const ExchangeExtents& extents, const SampleLayout& layout,
                                  const HeadShares& heads, int rank) {
  check(layout, heads, rank);
  if (layout.ring == 1) return {};
  const int ring_index = layout.ring_index(rank);
  // A rank sends its own block first. The block that it receives last began at the next ring rank and is not
  // sent on. The sums of a block's gradients begin at the next ring rank, and end where the block lives.
  const int64_t passed_on = layout.tokens - layout.ring_tokens((ring_index + 1) % layout.ring);
  const int64_t summed = layout.tokens - layout.ring_tokens(ring_index);
  const int64_t row = key_value_elements(extents, layout, heads, rank);
  const int64_t keys_and_values = passed_on * row * extents.element_bytes;
  return {keys_and_values, keys_and_values + summed * row * extents.sum_bytes};
}

ExchangeBytes gather_exchange_bytes(const ExchangeExtents& extents, const SampleLayout& layout,
                                    const HeadShares& heads, int rank) {
  check(layout, heads, rank);
  if (layout.ring == 1) return {};
  const int64_t ring_tokens = layout.ring_tokens(layout.ring_index(rank));
  const int64_t row = key_value_elements(extents, layout, heads, rank);
  const int64_t keys_and_values = ring_tokens * (layout.ring - 1) * row * extents.element_bytes;
  return {keys_and_values, keys_and_values + (layout.tokens - ring_tokens) * row * extents.sum_bytes};
}

UlyssesExchangeBytes column_exchange_bytes(const DeltaHeads& heads, const SampleLayout& layout, int64_t batch,
                                           int64_t element_bytes, int rank) {
  const int64_t others_tokens = layout.tokens - layout.size(rank);
  const auto sent = [&](const ColumnShares& shares) {  // of this rank's tokens
    return batch * layout.size(rank) * (shares.total() - shares.count(static_cast<size_t>(rank))) *
           element_bytes;
  };
  const auto back = [&](const ColumnShares& shares) {  // of this rank's columns
    return batch * others_tokens * shares.count(static_cast<size_t>(rank)) * element_bytes;
  };
  const ColumnShares columns = delta_columns(heads, layout.ranks()),
                     output = delta_output_columns(heads, layout.ranks());
  return {.qkv_to_heads = sent(columns),
          .o_to_seq = back(output),
          .do_to_heads = sent(output),
          .dqkv_to_seq = back(columns)};
}

}  // namespace trireme
