#include "trireme/base/sequence_layout.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

TEST(SequenceLayout, shares_are_contiguous_cover_every_token_once_and_differ_by_at_most_one) {
  for (int64_t tokens : {0, 1, 3, 61, 128, 1000003})
    for (int ranks = 1; ranks <= 9; ++ranks) {
      const SequenceLayout layout{tokens, ranks};
      EXPECT_EQ(layout.begin(0), 0);
      EXPECT_EQ(layout.begin(ranks), tokens);
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT_GE(layout.size(rank), tokens / ranks);
        EXPECT_LE(layout.size(rank), tokens / ranks + 1);
      }
    }
}

}  // namespace
}  // namespace trireme
