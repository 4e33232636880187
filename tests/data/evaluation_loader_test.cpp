// Evaluation sees every row once, and all ranks stay in step.
#include "trireme/data/evaluation_loader.h"

#include <algorithm>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/data/held_out_split.h"

#include "tests/data/numbered_set.h"

namespace trireme {
namespace {

using ::testing::HasSubstr;
using testing::NumberedSet;

LoaderOptions options(Packing packing) {
  LoaderOptions o;
  o.packing.kind = packing;
  o.sequence_tokens = 10;
  o.batch_size = 5;
  return o;
}

TEST(EvaluationLoader, gives_every_window_once_in_order_and_in_step_on_all_ranks) {
  const NumberedSet numbers({300, 1, 400, 299});
  const TokenSpan range{100, 571};  // 47 windows of 10
  for (const int dp_size : {1, 2, 3}) {
    std::vector<int64_t> seen;
    for (int dp = 0; dp < dp_size; ++dp) {
      LoaderOptions o = options(Packing::concat);
      o.dp_size = dp_size;
      o.dp_index = dp;
      EvaluationLoader loader(numbers.set, range, o);
      int64_t batches = 0;
      while (const auto batch = loader.next()) {
        ++batches;
        for (int64_t row = 0; row < batch->tokens.size(0); ++row) {
          if (batch->targets[row][0].item<int64_t>() == kIgnoredLabel) {
            EXPECT_TRUE(at::equal(batch->targets, at::full_like(batch->targets, kIgnoredLabel)));
            continue;
          }
          EXPECT_TRUE(at::equal(batch->targets[row], batch->tokens[row] + 1));
          seen.push_back(batch->tokens[row][0].item<int64_t>());
        }
      }
      EXPECT_EQ(batches, (47 + 5 * dp_size - 1) / (5 * dp_size));
      EXPECT_EQ(batches, loader.batches());
    }
    EXPECT_TRUE(dp_size > 1 || std::ranges::is_sorted(seen));
    std::ranges::sort(seen);
    ASSERT_EQ(seen.size(), 47U);
    for (int64_t w = 0; w < 47; ++w) EXPECT_EQ(seen[static_cast<size_t>(w)], 100 + w * 10);
  }
  EvaluationLoader limited(numbers.set, range, options(Packing::concat));
  limited.limit_rows(6);
  EXPECT_EQ(limited.next()->tokens.size(0), 5);
  EXPECT_EQ(limited.next()->tokens.size(0), 1);
  EXPECT_FALSE(limited.next().has_value());
}

TEST(EvaluationLoader, without_packing_gives_every_document) {
  const NumberedSet numbers({4, 23, 1, 10});  // rows of 4, of 10 + 10 + 3, none of one token, of 10
  EvaluationLoader loader(numbers.set, whole_set(*numbers.set), options(Packing::none));
  ASSERT_EQ(loader.rows(), 5);
  const TokenBatch batch = *loader.next();
  EXPECT_EQ(batch.documents.size(), 5U);
  EXPECT_EQ(batch.targets.ne(kIgnoredLabel).sum().item<int64_t>(), 3 + 22 + 9);
  EXPECT_FALSE(loader.next().has_value());
}

TEST(EvaluationLoader, masks_the_same_tokens_each_time) {
  const NumberedSet numbers({300, 1, 400, 299});
  LoaderOptions o = options(Packing::documents);
  o.masked_tokens.emplace();
  o.masked_tokens->vocab_size = testing::kNumberedVocabulary;
  EvaluationLoader first(numbers.set, whole_set(*numbers.set), o),
      second(numbers.set, whole_set(*numbers.set), o);
  int64_t masked = 0;
  while (const auto batch = first.next()) {
    const TokenBatch again = *second.next();
    EXPECT_TRUE(at::equal(batch->tokens, again.tokens));
    EXPECT_TRUE(at::equal(batch->targets, again.targets));
    masked += batch->targets.ne(kIgnoredLabel).sum().item<int64_t>();
  }
  EXPECT_GT(masked, 50);
}

TEST(HeldOutSplit, cuts_between_documents_and_loses_nothing) {
  std::vector<int64_t> lengths(44);  // they end at the triangular numbers
  std::iota(lengths.begin(), lengths.end(), 1);
  const NumberedSet numbers(lengths);
  const int64_t all = numbers.tokens();
  for (const double fraction : {0.1, 0.25, 0.9, 0.999}) {
    const HeldOutSplit split = split_held_out(*numbers.set, fraction);
    EXPECT_EQ(split.train.begin, 0);
    EXPECT_EQ(split.train.end, split.held_out.begin);
    EXPECT_EQ(split.held_out.end, all);
    EXPECT_GT(split.train.size(), 0);
    EXPECT_GT(split.held_out.size(), 0);
    EXPECT_FALSE(numbers.same_document(split.train.end - 1, split.train.end)) << split.train.end;
    EXPECT_NEAR(static_cast<double>(split.held_out.size()), static_cast<double>(all) * fraction, 45);
  }
  const NumberedSet one({1000});
  EXPECT_EQ(split_held_out(*one.set, 0.1).train.end, 900);  // one document
}

TEST(HeldOutSplit, leaves_an_answer_with_its_prompt_where_there_is_another_document) {
  const NumberedSet contracts({500, 500, 500}, {490, 490, 490});
  for (const double fraction : {0.001, 0.01, 0.3, 0.6, 0.999}) {
    const HeldOutSplit split = split_held_out(*contracts.set, fraction);
    EXPECT_EQ(split.train.end % 500, 0) << fraction;
    EXPECT_GT(split.train.size(), 0);
    EXPECT_GT(split.held_out.size(), 0);
  }
  const NumberedSet one({500}, {490});
  EXPECT_EQ(split_held_out(*one.set, 0.1).train.end, 450);
}

TEST(HeldOutSplit, cuts_inside_a_document_where_its_borders_are_far) {
  const NumberedSet books({600, 600, 600});
  EXPECT_EQ(split_held_out(*books.set, 0.01).held_out.size(), 18);
  EXPECT_EQ(split_held_out(*books.set, 0.3).held_out.size(), 600);
  const NumberedSet growing({1, 2, 3, 4, 500});
  EXPECT_EQ(split_held_out(*growing.set, 0.001).held_out.size(), 1);
}

TEST(HeldOutSplit, tells_how_much_it_holds_out_and_from_which_document_on) {
  const NumberedSet books({600, 600, 600});
  const auto told = [&](double fraction) {
    return held_out_note(*books.set, split_held_out(*books.set, fraction).held_out);
  };
  EXPECT_THAT(told(0.7), HasSubstr("the last 1,200 tokens of the set, 2 documents of 3, from document 1 on"));
  EXPECT_THAT(told(0.01),
              HasSubstr("the last 18 tokens of the set, 1 document of 3, from within document 2 on"));
}

}  // namespace
}  // namespace trireme
