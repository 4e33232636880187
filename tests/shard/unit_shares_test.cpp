#include "trireme/shard/unit_shares.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

TEST(UnitShares, cover_the_unit_once_and_begin_on_cache_lines_at_any_number_of_ranks) {
  for (const int64_t elements : {0, 16, 48, 160, 16 * 1001})
    for (int ranks = 1; ranks <= 9; ++ranks) {
      const auto sizes = share_sizes(elements, ranks);
      int64_t begin = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const UnitShare share = share_of(elements, ranks, rank);
        EXPECT_EQ(share.begin, begin);
        EXPECT_EQ(share.begin % 16, 0);
        EXPECT_EQ(share.elements, sizes[static_cast<size_t>(rank)]);
        EXPECT_LE(sizes.front() - share.elements, 16) << "shares differ by one block at most";
        begin += share.elements;
      }
      EXPECT_EQ(begin, elements);
    }
}

TEST(UnitShares, cut_units_hold_every_element_of_every_span_once) {
  const FlatUnit unit{
      "layer", 96, {{0, 10, false, "a", {10}}, {16, 40, true, "b", {4, 10}}, {64, 30, true, "c", {5, 6}}}};
  for (int ranks = 1; ranks <= 7; ++ranks) {
    std::vector<int> decayed(96, 0), plain(96, 0);
    for (int rank = 0; rank < ranks; ++rank) {
      const UnitShare share = share_of(96, ranks, rank);
      const FlatUnit cut = cut_unit(unit, share);
      EXPECT_EQ(cut.elements, share.elements);
      EXPECT_EQ(cut.begin, share.begin);
      for (const FlatSpan& span : cut.spans) {
        const FlatSpan& parameter = unit.spans.at(span.name[0] - 'a');
        EXPECT_EQ(span.shape, parameter.shape);
        EXPECT_EQ(span.whole(), span.elements == parameter.elements);
        EXPECT_EQ(parameter.offset + span.first, share.begin + span.offset) << "which slice of its parameter";
        for (int64_t at = 0; at < span.elements; ++at) {
          ASSERT_LT(span.offset + at, share.elements);
          ++(span.decays ? decayed : plain).at(static_cast<size_t>(share.begin + span.offset + at));
        }
      }
    }
    for (int at = 0; at < 96; ++at) {
      EXPECT_EQ(plain[at], at < 10 ? 1 : 0);
      EXPECT_EQ(decayed[at], (at >= 16 && at < 56) || (at >= 64 && at < 94) ? 1 : 0);
    }
  }
}

}  // namespace
}  // namespace trireme
