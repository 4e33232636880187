// How rows are dealt to steps and ranks, and how a loader goes on where another stopped.
#include "trireme/data/packed_loader.h"

#include <algorithm>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/data/held_out_split.h"

#include "tests/data/numbered_set.h"
#include "tests/support/error_message.h"

namespace trireme {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;
using testing::NumberedSet;

// Documents of 1, 2, 3, ... tokens, 1,000 in all.
std::vector<int64_t> growing_lengths() {
  std::vector<int64_t> lengths;
  int64_t left = 1000;
  for (int64_t size = 1; left > 0; ++size) {
    lengths.push_back(std::min(size, left));
    left -= lengths.back();
  }
  return lengths;
}

LoaderOptions options(int64_t sequence_tokens, int64_t batch_size, int64_t accumulation_steps,
                      Packing packing = Packing::concat) {
  LoaderOptions o;
  o.packing.kind = packing;
  o.sequence_tokens = sequence_tokens;
  o.batch_size = batch_size;
  o.accumulation_steps = accumulation_steps;
  o.seed = 7;
  return o;
}

// First tokens of the samples of the next step.
std::vector<int64_t> first_tokens(PackedLoader& loader) {
  std::vector<int64_t> firsts;
  for (const TokenBatch& batch : loader.next())
    for (int64_t row = 0; row < batch.tokens.size(0); ++row)
      firsts.push_back(batch.tokens[row][0].item<int64_t>());
  return firsts;
}

void expect_same(const StepBatches& a, const StepBatches& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(at::equal(a[i].tokens, b[i].tokens));
    EXPECT_TRUE(at::equal(a[i].targets, b[i].targets));
    ASSERT_EQ(a[i].documents.size(), b[i].documents.size());
    for (size_t j = 0; j < a[i].documents.size(); ++j)
      EXPECT_EQ(a[i].documents[j].cu_seqlens(), b[i].documents[j].cu_seqlens());
  }
}

class PackedLoaderTest : public ::testing::Test {
 protected:
  PackedLoader loader(const LoaderOptions& o) const { return {numbers_.set, whole_set(*numbers_.set), o}; }

  const NumberedSet numbers_{growing_lengths()};
};

// Windows of 10 of 1,000 tokens at seed 7, as every version since the first dealt them.
TEST_F(PackedLoaderTest, the_order_of_windows_is_that_of_the_first_version) {
  for (const Packing packing : {Packing::concat, Packing::documents}) {
    PackedLoader dealt = loader(options(10, 4, 3, packing));
    EXPECT_THAT(first_tokens(dealt), ElementsAre(490, 140, 160, 120, 500, 30, 240, 460, 80, 270, 570, 110));
    PackedLoader second_epoch = loader(options(10, 99, 1, packing));
    second_epoch.next();
    std::vector<int64_t> firsts = first_tokens(second_epoch);
    firsts.resize(5);
    EXPECT_THAT(firsts, ElementsAre(340, 520, 210, 730, 80));
  }
}

TEST_F(PackedLoaderTest, a_step_is_accumulation_steps_batches_of_the_shape_asked_for) {
  for (const Packing packing : {Packing::concat, Packing::documents, Packing::none, Packing::best_fit}) {
    PackedLoader dealt = loader(options(10, 3, 2, packing));
    for (int step = 0; step < 40; ++step) {
      const StepBatches batches = dealt.next();
      ASSERT_EQ(batches.size(), 2U);
      for (const TokenBatch& batch : batches) {
        EXPECT_EQ(batch.tokens.sizes(), (std::vector<int64_t>{3, 10}));
        EXPECT_EQ(batch.targets.sizes(), (std::vector<int64_t>{3, 10}));
        EXPECT_EQ(batch.documents.size(), packing == Packing::concat ? 0U : 3U);
      }
    }
  }
}

TEST_F(PackedLoaderTest, data_parallel_ranks_together_see_every_window_once_an_epoch) {
  // 99 windows of 10; 3 ranks of 11 windows a step.
  std::multiset<int64_t> seen;
  for (int dp = 0; dp < 3; ++dp) {
    LoaderOptions o = options(10, 11, 1);
    o.dp_size = 3;
    o.dp_index = dp;
    PackedLoader dealt = loader(o);
    ASSERT_EQ(dealt.rows(), 99);
    ASSERT_EQ(dealt.rows_per_step(), 33);
    for (int step = 0; step < 3; ++step)
      for (const int64_t first : first_tokens(dealt)) seen.insert(first);
  }
  std::multiset<int64_t> every_window;
  for (int64_t w = 0; w < 99; ++w) every_window.insert(w * 10);
  EXPECT_EQ(seen, every_window);
}

TEST_F(PackedLoaderTest, without_packing_an_epoch_gives_every_row_once_to_some_rank) {
  const PackedRows rows(numbers_.set, whole_set(*numbers_.set), {Packing::none}, 10, true);
  std::multiset<int64_t> expected, seen;
  for (int64_t row = 0; row < rows.count(); ++row)
    if (rows.row(row).pieces.at(0).size() > 1 || rows.row(row).goes_on)
      expected.insert(rows.row(row).pieces.at(0).begin);
  for (int dp = 0; dp < 2; ++dp) {
    LoaderOptions o = options(10, 1, 1, Packing::none);
    o.dp_size = 2;
    o.dp_index = dp;
    PackedLoader dealt = loader(o);
    ASSERT_EQ(dealt.rows(), static_cast<int64_t>(expected.size()));
    const int64_t rows_here = (dealt.rows() + 1 - dp) / 2;
    for (int64_t step = 0; step < rows_here; ++step) seen.insert(first_tokens(dealt).front());
  }
  EXPECT_EQ(seen, expected);
}

TEST_F(PackedLoaderTest, a_step_is_the_same_windows_however_it_is_cut) {
  // 12 windows a step as 1 x 12, as 3 accumulated, and over 2 ranks x 3 x 2: the same set of samples.
  const auto step_of = [&](int dp_size, int64_t batch, int64_t accumulation) {
    std::multiset<int64_t> seen;
    for (int dp = 0; dp < dp_size; ++dp) {
      LoaderOptions o = options(10, batch, accumulation);
      o.dp_size = dp_size;
      o.dp_index = dp;
      PackedLoader dealt = loader(o);
      for (const int64_t first : first_tokens(dealt)) seen.insert(first);
    }
    return seen;
  };
  EXPECT_EQ(step_of(1, 12, 1), step_of(1, 4, 3));
  EXPECT_EQ(step_of(1, 12, 1), step_of(2, 2, 3));
}

TEST_F(PackedLoaderTest, epochs_differ_in_order_and_seeds_too_and_each_repeats) {
  const auto order = [&](uint64_t seed, int64_t epochs) {
    LoaderOptions o = options(10, 1, 99);
    o.seed = seed;
    PackedLoader dealt = loader(o);
    std::vector<int64_t> last;
    for (int64_t e = 0; e < epochs; ++e) last = first_tokens(dealt);
    return last;
  };
  EXPECT_EQ(order(7, 1), order(7, 1));
  EXPECT_NE(order(7, 1), order(7, 2));
  EXPECT_NE(order(7, 1), order(8, 1));
  EXPECT_FALSE(std::ranges::is_sorted(order(7, 1)));
  LoaderOptions o = options(10, 1, 99);
  o.shuffle = false;
  PackedLoader in_order = loader(o);
  EXPECT_TRUE(std::ranges::is_sorted(first_tokens(in_order)));
}

TEST_F(PackedLoaderTest, an_epoch_whose_windows_do_not_fill_steps_runs_on_into_the_next) {
  PackedLoader dealt = loader(options(10, 1, 7));  // 99 = 14 * 7 + 1
  std::multiset<int64_t> seen;
  for (int step = 0; step < 99; ++step)
    for (const int64_t first : first_tokens(dealt)) seen.insert(first);
  for (int64_t w = 0; w < 99; ++w) EXPECT_EQ(seen.count(w * 10), 7);
  EXPECT_DOUBLE_EQ(dealt.epochs_done(), 7.0);
}

TEST_F(PackedLoaderTest, a_restored_loader_goes_on_exactly) {
  for (const Packing packing : {Packing::concat, Packing::documents, Packing::none, Packing::best_fit}) {
    for (const bool masked : {false, true}) {
      LoaderOptions o = options(10, 1, 7, packing);
      if (masked) {
        o.masked_tokens.emplace();
        o.masked_tokens->vocab_size = testing::kNumberedVocabulary;
      }
      for (const int done : {0, 1, 13, 14, 30}) {
        PackedLoader first = loader(o);
        for (int step = 0; step < done; ++step) first.next();
        const Json state = Json::parse(first.state().dump());
        PackedLoader second = loader(o);
        second.restore(state);
        for (int step = 0; step < 20; ++step) expect_same(first.next(), second.next());
      }
    }
  }
}

TEST_F(PackedLoaderTest, every_epoch_masks_other_tokens) {
  LoaderOptions o = options(10, 99, 1);
  o.shuffle = false;
  o.masked_tokens.emplace();
  o.masked_tokens->vocab_size = testing::kNumberedVocabulary;
  PackedLoader dealt = loader(o);
  const at::Tensor first = dealt.next()[0].targets, second = dealt.next()[0].targets;
  EXPECT_EQ(first.sizes(), second.sizes());
  EXPECT_FALSE(at::equal(first, second));
}

TEST_F(PackedLoaderTest, a_state_of_another_order_is_refused) {
  PackedLoader dealt = loader(options(10, 1, 7));
  dealt.next();
  const Json state = dealt.state();
  PackedLoader other_length = loader(options(20, 1, 7));
  EXPECT_THAT(message_of<DataError>([&] { other_length.restore(state); }), HasSubstr("sequence_tokens 10"));
  PackedLoader other_packing = loader(options(10, 1, 7, Packing::documents));
  EXPECT_THAT(message_of<DataError>([&] { other_packing.restore(state); }),
              HasSubstr("packing \"concat\", this run has \"documents\""));
  LoaderOptions skipping = options(10, 1, 7, Packing::none);
  const Json cut = loader(skipping).state();
  skipping.packing.long_documents = LongDocuments::skip;
  PackedLoader others = loader(skipping);
  EXPECT_THAT(message_of<DataError>([&] { others.restore(cut); }), HasSubstr("long_documents \"cut\""));
  PackedLoader other_range(numbers_.set, {0, 500}, options(10, 1, 7));
  EXPECT_THAT(message_of<DataError>([&] { other_range.restore(state); }), HasSubstr("range_end"));
  EXPECT_THAT(message_of<DataError>([&] { dealt.restore(Json::array()); }),
              HasSubstr("expected a JSON object"));
  Json beyond = state;
  beyond["row"] = 99;
  EXPECT_THAT(message_of<DataError>([&] { dealt.restore(beyond); }), HasSubstr("row 99 of 99"));
}

}  // namespace
}  // namespace trireme
