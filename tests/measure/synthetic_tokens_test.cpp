// The tokens of the formula, against values that bench/peers/peer_data.py gave.
#include "trireme/measure/synthetic_tokens.h"

#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/sum_of.h"

namespace trireme {
namespace {

using ::testing::ElementsAre;

TEST(SyntheticTokens, are_those_of_the_python_program) {
  EXPECT_THAT(synthetic_tokens(0, 0, 12, 32000),
              ElementsAre(461, 274, 363, 808, 985, 846, 992, 881, 326, 96, 497, 454));
  EXPECT_THAT(synthetic_tokens(3, 70000, 12, 32000),
              ElementsAre(522, 579, 864, 241, 216, 73, 382, 950, 671, 300, 493, 434));
  EXPECT_THAT(synthetic_tokens(0, 1, 12, 70), ElementsAre(5, 42, 17, 32, 37, 62, 47, 42, 10, 67, 2, 27));
  EXPECT_EQ(sum_of(synthetic_tokens(0, 0, 5000, 32000)), 2590258);
  EXPECT_EQ(sum_of(synthetic_tokens(3, 70000, 5000, 32000)), 2571751);
  EXPECT_EQ(sum_of(synthetic_tokens(0, 1, 5000, 70)), 170144);
}

TEST(SyntheticTokens, slices_of_all_ranks_join_to_the_samples_and_targets_are_the_next_tokens) {
  constexpr int64_t kTokens = 11, kBatch = 2;
  for (const auto& [ulysses, ring] :
       std::vector<std::pair<int, int>>{{1, 1}, {3, 1}, {13, 1}, {1, 2}, {2, 3}}) {
    const SampleLayout layout{kTokens, ulysses, ring};
    at::Tensor all_tokens = at::full({kBatch, kTokens}, -1, at::kLong), all_targets = all_tokens.clone();
    for (int rank = 0; rank < layout.ranks(); ++rank) {
      const TokenBatch slice = synthetic_batch(5, 8, kBatch, 100, layout, rank);
      EXPECT_EQ(slice.layout, layout);
      int64_t column = 0;
      for (const TokenSpan& span : layout.spans(rank)) {
        all_tokens.slice(1, span.begin, span.end).copy_(slice.tokens.slice(1, column, column + span.size()));
        all_targets.slice(1, span.begin, span.end)
            .copy_(slice.targets.slice(1, column, column + span.size()));
        column += span.size();
      }
      EXPECT_EQ(column, slice.tokens.size(1));
    }
    for (int64_t b = 0; b < kBatch; ++b) {
      const std::vector<int64_t> sample = synthetic_tokens(5, static_cast<uint64_t>(8 + b), kTokens, 100);
      for (int64_t t = 0; t < kTokens; ++t) {
        EXPECT_EQ(all_tokens[b][t].item<int64_t>(), sample[static_cast<size_t>(t)]);
        EXPECT_EQ(all_targets[b][t].item<int64_t>(),
                  t + 1 < kTokens ? sample[static_cast<size_t>(t + 1)] : kIgnoredLabel);
      }
    }
  }
}

}  // namespace
}  // namespace trireme
