#include "trireme/shard/unit_shares.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

TEST(UnitShares, are_equal_and_cover_the_padded_unit_in_whole_cache_lines_at_any_number_of_ranks) {
  for (const int64_t elements : {0, 16, 48, 160, 16 * 1001})
    for (int ranks = 1; ranks <= 9; ++ranks) {
      const int64_t padded = padded_elements(elements, ranks);
      EXPECT_GE(padded, elements);
      EXPECT_LT(padded, elements + 16 * ranks) << "no more than it takes";
      const int64_t share = padded / ranks;
      EXPECT_EQ(share % 16, 0);
      EXPECT_EQ(equal_shares(share, ranks), std::vector<int64_t>(static_cast<size_t>(ranks), share));
      for (int rank = 0; rank < ranks; ++rank)
        for (const int64_t of : {elements, padded}) {
          EXPECT_EQ(share_of(of, ranks, rank).begin, rank * share);
          EXPECT_EQ(share_of(of, ranks, rank).elements, share);
        }
    }
}

TEST(UnitShares, cut_units_hold_every_element_of_every_span_once) {
  const FlatUnit unit{
      "layer", 96, {{0, 10, false, "a", {10}}, {16, 40, true, "b", {4, 10}}, {64, 30, true, "c", {5, 6}}}};
  for (int ranks = 1; ranks <= 7; ++ranks) {
    const auto padded = static_cast<size_t>(padded_elements(96, ranks));
    std::vector<int> decayed(padded, 0), plain(padded, 0);
    for (int rank = 0; rank < ranks; ++rank) {
      const UnitShare share = share_of(96, ranks, rank);
      const FlatUnit cut = cut_unit(unit, share);
      EXPECT_EQ(cut.elements, share.elements);
      EXPECT_EQ(cut.begin, share.begin);
      for (const FlatSpan& span : cut.spans) {
        const FlatSpan& parameter = unit.spans.at(span.name[0] - 'a');
        EXPECT_EQ(span.shape, parameter.shape);
        EXPECT_EQ(parameter.offset + span.first, share.begin + span.offset) << "which slice of its parameter";
        for (int64_t at = 0; at < span.elements; ++at) {
          ASSERT_LT(span.offset + at, share.elements);
          ++(span.decays ? decayed : plain).at(static_cast<size_t>(share.begin + span.offset + at));
        }
      }
    }
    for (int at = 0; at < static_cast<int>(padded); ++at) {
      EXPECT_EQ(plain[at], at < 10 ? 1 : 0);
      EXPECT_EQ(decayed[at], (at >= 16 && at < 56) || (at >= 64 && at < 94) ? 1 : 0);
    }
  }
}

}  // namespace
}  // namespace trireme
