#include "trireme/attention/head_shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"

#include "tests/support/error_message.h"

namespace trireme {
namespace {

TEST(HeadShares, six_over_three_on_two_ranks_share_the_middle_key_value_head) {
  const HeadShares shares = share_heads(6, 3, 2);
  EXPECT_EQ(shares.query[0].begin, 0);
  EXPECT_EQ(shares.query[0].end, 3);
  EXPECT_EQ(shares.query[1].begin, 3);
  EXPECT_EQ(shares.query[1].end, 6);
  EXPECT_EQ(shares.key_value[0].begin, 0);
  EXPECT_EQ(shares.key_value[0].end, 2);
  EXPECT_EQ(shares.key_value[1].begin, 1);
  EXPECT_EQ(shares.key_value[1].end, 3);
  EXPECT_EQ(shares.kv_of_query(0), (std::vector<int>{0, 0, 1}));
  EXPECT_EQ(shares.kv_of_query(1), (std::vector<int>{0, 1, 1}));
}

TEST(HeadShares, every_query_head_is_computed_once_and_finds_its_key_value_head) {
  for (const auto& [heads, kv_heads] :
       {std::pair{1, 1}, {3, 3}, {3, 1}, {6, 2}, {7, 7}, {7, 1}, {8, 4}, {14, 2}, {28, 4}, {28, 28}, {40, 8}})
    for (int ranks = 1; ranks <= heads; ++ranks) {
      const HeadShares shares = share_heads(heads, kv_heads, ranks);
      int64_t next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const HeadRange query = shares.query[rank], kv = shares.key_value[rank];
        EXPECT_EQ(query.begin, next);
        EXPECT_EQ(query.size(), heads / ranks + (rank < heads % ranks ? 1 : 0));
        next = query.end;
        const std::vector<int> map = shares.kv_of_query(rank);
        ASSERT_EQ(map.size(), query.size());
        EXPECT_EQ(map.front(), 0);
        EXPECT_EQ(map.back(), kv.size() - 1);
        for (int64_t i = 0; i < query.size(); ++i)
          EXPECT_EQ(kv.begin + map[i], (query.begin + i) / (heads / kv_heads)) << heads << "/" << kv_heads;
      }
      EXPECT_EQ(next, heads);
    }
}

TEST(HeadShares, say_whether_several_ranks_have_a_key_value_head) {
  EXPECT_FALSE(share_heads(8, 4, 2).shares_key_values());
  EXPECT_FALSE(share_heads(8, 8, 3).shares_key_values());
  EXPECT_TRUE(share_heads(6, 3, 2).shares_key_values());
  EXPECT_TRUE(share_heads(8, 2, 4).shares_key_values());
}

TEST(HeadShares, more_ranks_than_heads_is_refused) {
  EXPECT_THAT(testing::message_of<ConfigError>([] { share_heads(4, 2, 5); }),
              ::testing::HasSubstr("4 query heads"));
  EXPECT_THROW(share_heads(6, 4, 1), ConfigError);
  EXPECT_THROW(share_heads(6, 0, 1), ConfigError);
  EXPECT_THROW(share_heads(6, 3, 0), ConfigError);
}

}  // namespace
}  // namespace trireme
