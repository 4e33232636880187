// Prompts are read and never predicted, in any packing; judged by a scan over tokens that knows no spans.
#include "trireme/data/prompts.h"

#include <algorithm>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/data/held_out_split.h"
#include "trireme/data/row_reader.h"

#include "tests/data/numbered_set.h"
#include "tests/support/error_message.h"

namespace trireme::prompts_test {
namespace {

using ::testing::HasSubstr;
using testing::message_of;
using testing::NumberedSet;

LoaderOptions options(Packing packing, int64_t sequence_tokens) {
  LoaderOptions o;
  o.packing.kind = packing;
  o.sequence_tokens = sequence_tokens;
  return o;
}

TEST(Prompts, count_and_ignore_what_of_them_lies_in_a_stretch) {
  Prompts prompts;
  prompts.add({2, 5});
  prompts.add({5, 5});
  prompts.add({5, 6});
  prompts.add({9, 10});
  EXPECT_FALSE(prompts.empty());
  const std::set<int64_t> of_prompts{2, 3, 4, 5, 9};
  for (int64_t begin = 0; begin <= 12; ++begin) {
    for (int64_t end = begin; end <= 12; ++end) {
      std::vector<int64_t> targets, expected;
      for (int64_t t = begin; t < end; ++t) {
        targets.push_back(t);
        expected.push_back(of_prompts.contains(t) ? kIgnoredLabel : t);
      }
      EXPECT_EQ(prompts.tokens_in({begin, end}), std::ranges::count(expected, kIgnoredLabel));
      prompts.ignore({begin, end}, targets.data());
      EXPECT_EQ(targets, expected);
    }
  }
}

// Prompts of every length beside answers of every length; documents that are nothing but a prompt.
class PromptsInRows : public ::testing::Test {
 protected:
  // What the token after `token` is to it, in a row that goes on.
  int64_t target_of(int64_t token, TokenSpan range, bool concat) const {
    const int64_t next = token + 1;
    if (next >= range.end || set_.is_prompt.at(static_cast<size_t>(next))) return kIgnoredLabel;
    return concat || set_.same_document(token, next) ? next : kIgnoredLabel;
  }

  const NumberedSet set_{{3, 1, 0, 1, 7, 40, 2, 5, 0, 16, 60, 1, 9, 64, 1, 12, 4},
                         {0, 1, 0, 0, 3, 39, 1, 5, 0, 16, 60, 0, 0, 33, 1, 0, 2}};
  const std::vector<TokenSpan> ranges_{whole_set(*set_.set), {2, 160}};
};

TEST_F(PromptsInRows, every_token_outside_prompts_is_a_target_once_and_no_row_is_without_one) {
  for (const Packing packing : {Packing::concat, Packing::documents, Packing::none, Packing::best_fit}) {
    const bool concat = packing == Packing::concat;
    const bool windows = concat || packing == Packing::documents;
    for (const TokenSpan& range : ranges_) {
      for (const int64_t S : {1, 2, 5, 8, 16, 40, 64, 100}) {
        const RowReader reader(set_.set, range, options(packing, S));
        std::multiset<int64_t> predicted, expected;
        for (int64_t row = 0; row < reader.rows(); ++row) {
          const TokenBatch batch = reader.read({{row, 0}});
          const auto tokens = batch.tokens[0].contiguous(), targets = batch.targets[0].contiguous();
          const size_t before = predicted.size();
          for (int64_t t = 0; t < S; ++t) {
            const auto target = targets[t].item<int64_t>();
            if (target == kIgnoredLabel) continue;
            EXPECT_EQ(target, target_of(tokens[t].item<int64_t>(), range, concat));
            predicted.insert(target);
          }
          EXPECT_GT(predicted.size(), before) << name_of(packing) << " S " << S << " row " << row;
        }
        // Tokens after the last window are in no row.
        const int64_t last = windows ? range.begin + (range.size() - 1) / S * S : range.end;
        for (int64_t t = range.begin; t < last; ++t)
          if (const int64_t target = target_of(t, range, concat); target != kIgnoredLabel)
            expected.insert(target);
        EXPECT_EQ(predicted, expected) << name_of(packing) << " S " << S;
      }
    }
  }
}

TEST_F(PromptsInRows, the_tokens_of_prompts_are_read_as_they_are) {
  const RowReader reader(set_.set, whole_set(*set_.set), options(Packing::documents, 64));
  EXPECT_TRUE(at::equal(reader.read({{0, 0}}).tokens[0], at::arange(64)));
}

TEST_F(PromptsInRows, slices_of_ranks_join_to_the_row_of_one) {
  constexpr int64_t S = 64;
  for (const Packing packing : {Packing::documents, Packing::best_fit}) {
    LoaderOptions o = options(packing, S);
    const at::Tensor whole = RowReader(set_.set, whole_set(*set_.set), o).read({{1, 0}}).targets[0];
    o.ulysses = 3;
    o.ring = 2;
    for (o.sp_rank = 0; o.sp_rank < 6; ++o.sp_rank) {
      const TokenBatch slice = RowReader(set_.set, whole_set(*set_.set), o).read({{1, 0}});
      std::vector<at::Tensor> expected;
      for (const TokenSpan& span : slice.layout.spans(o.sp_rank))
        expected.push_back(whole.slice(0, span.begin, span.end));
      EXPECT_TRUE(at::equal(slice.targets[0], at::cat(expected)));
    }
  }
}

TEST(PromptsAlone, are_refused_with_what_is_missing) {
  const NumberedSet set({8, 9}, {8, 9});
  for (const Packing packing : {Packing::concat, Packing::documents, Packing::none, Packing::best_fit})
    EXPECT_THAT(message_of<DataError>([&] { RowReader(set.set, whole_set(*set.set), options(packing, 4)); }),
                HasSubstr("prompts"));
}

TEST(PromptsOfAnEncoder, are_refused) {
  const NumberedSet set({8, 9}, {4, 0});
  LoaderOptions o = options(Packing::documents, 4);
  o.masked_tokens = MaskedTokenOptions{.vocab_size = testing::kNumberedVocabulary};
  EXPECT_THAT(message_of<ConfigError>([&] { RowReader(set.set, whole_set(*set.set), o); }),
              HasSubstr("which a model of masked tokens (BERT) does not know"));
}

}  // namespace
}  // namespace trireme::prompts_test
