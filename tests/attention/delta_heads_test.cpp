#include "trireme/attention/delta_heads.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

using Range = std::pair<int64_t, int64_t>;

std::vector<std::pair<Range, Range>> shares_of(const DeltaHeads& heads, int ranks) {
  std::vector<std::pair<Range, Range>> shares;
  for (int rank = 0; rank < ranks; ++rank) {
    const DeltaShare share = delta_share(heads, rank, ranks);
    shares.push_back({{share.value.begin, share.value.end}, {share.key.begin, share.key.end}});
  }
  return shares;
}

TEST(DeltaShare, is_whole_groups_up_to_the_key_heads_and_value_heads_beyond) {
  const DeltaHeads heads{.key = 2, .value = 4, .key_width = 3, .value_width = 5};
  using Shares = std::vector<std::pair<Range, Range>>;
  EXPECT_EQ(shares_of(heads, 1), (Shares{{{0, 4}, {0, 2}}}));
  EXPECT_EQ(shares_of(heads, 2), (Shares{{{0, 2}, {0, 1}}, {{2, 4}, {1, 2}}}));
  EXPECT_EQ(shares_of(heads, 3), (Shares{{{0, 1}, {0, 1}}, {{1, 2}, {0, 1}}, {{2, 4}, {1, 2}}}));
  EXPECT_EQ(shares_of({.key = 1, .value = 3}, 2), (Shares{{{0, 1}, {0, 1}}, {{1, 3}, {0, 1}}}));
  EXPECT_EQ(shares_of({.key = 3, .value = 6}, 2), (Shares{{{0, 2}, {0, 1}}, {{2, 6}, {1, 3}}}));
}

TEST(DeltaShare, of_ranks_beyond_the_value_heads_is_empty) {
  const DeltaHeads heads{.key = 1, .value = 3, .key_width = 3, .value_width = 5};
  int64_t empty = 0;
  for (int rank = 0; rank < 5; ++rank) {
    const DeltaShare share = delta_share(heads, rank, 5);
    if (share.value.size() > 0) continue;
    ++empty;
    EXPECT_EQ(share.key.size(), 0);
    EXPECT_EQ(share.columns(heads), 0);
  }
  EXPECT_EQ(empty, 2);
}

TEST(DeltaShare, names_the_key_head_of_each_of_its_value_heads) {
  const DeltaHeads heads{.key = 2, .value = 6, .key_width = 3, .value_width = 5};
  EXPECT_EQ(key_of_value(heads, delta_share(heads, 0, 1)), (std::vector<int64_t>{0, 0, 0, 1, 1, 1}));
  EXPECT_EQ(key_of_value(heads, delta_share(heads, 1, 2)), (std::vector<int64_t>{0, 0, 0}));
  EXPECT_EQ(key_of_value(heads, delta_share(heads, 1, 3)), (std::vector<int64_t>{0, 1}));  // values 2 and 3
}

TEST(DeltaShare, has_spans_of_q_k_v_b_and_a) {
  const DeltaHeads heads{.key = 2, .value = 4, .key_width = 3, .value_width = 5};
  EXPECT_EQ(heads.convolved_columns(), 2 * 6 + 20);
  EXPECT_EQ(heads.columns(), 32 + 8);
  std::vector<Range> spans;
  const DeltaShare second = delta_share(heads, 1, 2);
  for (const HeadRange& span : column_spans(heads, second)) spans.emplace_back(span.begin, span.end);
  EXPECT_EQ(spans, (std::vector<Range>{{3, 6}, {9, 12}, {22, 32}, {34, 36}, {38, 40}}));
  EXPECT_EQ(second.columns(heads), 3 + 3 + 10 + 2 + 2);
}

TEST(ColumnShares, cover_every_column_and_share_out_the_output) {
  for (const DeltaHeads& heads : {DeltaHeads{2, 4, 3, 5}, DeltaHeads{1, 3, 2, 2}, DeltaHeads{3, 6, 1, 4}})
    for (int ranks = 1; ranks <= 7; ++ranks) {
      const ColumnShares columns = delta_columns(heads, ranks), output = delta_output_columns(heads, ranks);
      std::vector<int> taken(static_cast<size_t>(heads.columns())),
          given(static_cast<size_t>(heads.output_columns()));
      for (int rank = 0; rank < ranks; ++rank) {
        for (const HeadRange& span : columns.of_rank[static_cast<size_t>(rank)])
          for (int64_t column = span.begin; column < span.end; ++column) ++taken[static_cast<size_t>(column)];
        for (const HeadRange& span : output.of_rank[static_cast<size_t>(rank)])
          for (int64_t column = span.begin; column < span.end; ++column) ++given[static_cast<size_t>(column)];
      }
      int64_t total = 0;
      for (const int times : taken) {
        EXPECT_GE(times, 1);
        total += times;
      }
      EXPECT_EQ(columns.total(), total);
      EXPECT_EQ(given, std::vector<int>(given.size(), 1));
      EXPECT_EQ(total > heads.columns(), ranks > heads.key);
    }
}

}  // namespace
}  // namespace trireme
