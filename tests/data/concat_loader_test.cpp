// The laws of the loader, on a set whose token at place i has the id i: a batch then shows what was read.
#include "trireme/data/concat_loader.h"

#include <algorithm>
#include <memory>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/data/indexed_dataset_writer.h"
#include "trireme/data/sample_order.h"

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;
using testing::TemporaryFolder;

constexpr int64_t kTokens = 1000;

// Documents of 1, 2, 3, ... tokens.
std::shared_ptr<const IndexedDataset> counting_set(const TemporaryFolder& folder,
                                                   int64_t first_document = 1) {
  IndexedDatasetWriter writer(folder / "set", 2000);
  int32_t next = 0;
  for (int64_t size = first_document; next < kTokens; ++size) {
    std::vector<int32_t> document;
    while (static_cast<int64_t>(document.size()) < size && next < kTokens) document.push_back(next++);
    writer.add_document(document);
  }
  writer.finish();
  return std::make_shared<const IndexedDataset>(folder / "set");
}

LoaderOptions options(int64_t sequence_tokens, int64_t batch_size, int64_t accumulation_steps) {
  LoaderOptions o;
  o.sequence_tokens = sequence_tokens;
  o.batch_size = batch_size;
  o.accumulation_steps = accumulation_steps;
  o.seed = 7;
  return o;
}

// First tokens of the samples of the next step.
std::vector<int64_t> first_tokens(ConcatLoader& loader) {
  std::vector<int64_t> firsts;
  for (const TokenBatch& batch : loader.next())
    for (int64_t row = 0; row < batch.tokens.size(0); ++row)
      firsts.push_back(batch.tokens[row][0].item<int64_t>());
  return firsts;
}

class ConcatLoaderTest : public ::testing::Test {
 protected:
  TemporaryFolder folder_;
  std::shared_ptr<const IndexedDataset> set_ = counting_set(folder_);
};

TEST_F(ConcatLoaderTest, targets_are_the_next_tokens_also_across_documents_and_windows) {
  ConcatLoader loader(set_, whole_set(*set_), options(10, 3, 2));
  for (int step = 0; step < 40; ++step) {
    const StepBatches batches = loader.next();
    ASSERT_EQ(batches.size(), 2);
    for (const TokenBatch& batch : batches) {
      ASSERT_EQ(batch.tokens.sizes(), (std::vector<int64_t>{3, 10}));
      EXPECT_TRUE(at::equal(batch.targets, batch.tokens + 1));
      EXPECT_TRUE(at::equal(batch.tokens - batch.tokens.slice(1, 0, 1), at::arange(10).expand({3, 10})));
    }
  }
}

TEST_F(ConcatLoaderTest, slices_of_any_number_of_sequence_ranks_are_the_batch_of_one) {
  for (const int ranks : {2, 3, 4, 13}) {
    ConcatLoader whole(set_, whole_set(*set_), options(11, 2, 2));
    std::vector<ConcatLoader> loaders;
    for (int rank = 0; rank < ranks; ++rank) {
      LoaderOptions o = options(11, 2, 2);
      o.sp_size = ranks;
      o.sp_rank = rank;
      loaders.emplace_back(set_, whole_set(*set_), o);
    }
    for (int step = 0; step < 5; ++step) {
      const StepBatches expected = whole.next();
      std::vector<StepBatches> got;
      for (ConcatLoader& loader : loaders) got.push_back(loader.next());
      for (size_t micro = 0; micro < expected.size(); ++micro) {
        std::vector<at::Tensor> tokens, targets;
        for (const StepBatches& slices : got) {
          EXPECT_EQ(slices[micro].layout.tokens, 11);
          EXPECT_EQ(slices[micro].layout.ranks, ranks);
          tokens.push_back(slices[micro].tokens);
          targets.push_back(slices[micro].targets);
        }
        EXPECT_TRUE(at::equal(at::cat(tokens, 1), expected[micro].tokens));
        EXPECT_TRUE(at::equal(at::cat(targets, 1), expected[micro].targets));
      }
    }
  }
}

TEST_F(ConcatLoaderTest, data_parallel_ranks_together_see_every_window_once_an_epoch) {
  // 99 windows of 10; 3 ranks of 11 windows a step.
  std::multiset<int64_t> seen;
  for (int dp = 0; dp < 3; ++dp) {
    LoaderOptions o = options(10, 11, 1);
    o.dp_size = 3;
    o.dp_index = dp;
    ConcatLoader loader(set_, whole_set(*set_), o);
    ASSERT_EQ(loader.windows(), 99);
    ASSERT_EQ(loader.steps_per_epoch(), 3);
    for (int step = 0; step < 3; ++step)
      for (const int64_t first : first_tokens(loader)) seen.insert(first);
  }
  std::multiset<int64_t> every_window;
  for (int64_t w = 0; w < 99; ++w) every_window.insert(w * 10);
  EXPECT_EQ(seen, every_window);
}

TEST_F(ConcatLoaderTest, a_step_is_the_same_windows_however_it_is_cut) {
  // 12 windows a step as 1 x 12, as 3 accumulated, and over 2 ranks x 3 x 2: the same set of samples.
  const auto step_of = [&](int dp_size, int64_t batch, int64_t accumulation) {
    std::multiset<int64_t> seen;
    for (int dp = 0; dp < dp_size; ++dp) {
      LoaderOptions o = options(10, batch, accumulation);
      o.dp_size = dp_size;
      o.dp_index = dp;
      ConcatLoader loader(set_, whole_set(*set_), o);
      for (const int64_t first : first_tokens(loader)) seen.insert(first);
    }
    return seen;
  };
  EXPECT_EQ(step_of(1, 12, 1), step_of(1, 4, 3));
  EXPECT_EQ(step_of(1, 12, 1), step_of(2, 2, 3));
}

TEST_F(ConcatLoaderTest, epochs_differ_in_order_and_seeds_too_and_each_repeats) {
  const auto order = [&](uint64_t seed, int64_t epochs) {
    LoaderOptions o = options(10, 1, 99);
    o.seed = seed;
    ConcatLoader loader(set_, whole_set(*set_), o);
    std::vector<int64_t> last;
    for (int64_t e = 0; e < epochs; ++e) last = first_tokens(loader);
    return last;
  };
  EXPECT_EQ(order(7, 1), order(7, 1));
  EXPECT_NE(order(7, 1), order(7, 2));
  EXPECT_NE(order(7, 1), order(8, 1));
  EXPECT_FALSE(std::ranges::is_sorted(order(7, 1)));
  LoaderOptions o = options(10, 1, 99);
  o.shuffle = false;
  ConcatLoader in_order(set_, whole_set(*set_), o);
  EXPECT_TRUE(std::ranges::is_sorted(first_tokens(in_order)));
}

TEST_F(ConcatLoaderTest, an_epoch_whose_windows_do_not_fill_steps_runs_on_into_the_next) {
  ConcatLoader loader(set_, whole_set(*set_), options(10, 1, 7));  // 99 = 14 * 7 + 1
  std::multiset<int64_t> seen;
  for (int step = 0; step < 99; ++step)
    for (const int64_t first : first_tokens(loader)) seen.insert(first);
  for (int64_t w = 0; w < 99; ++w) EXPECT_EQ(seen.count(w * 10), 7);
  EXPECT_DOUBLE_EQ(loader.epochs_done(), 7.0);
}

TEST_F(ConcatLoaderTest, a_restored_loader_goes_on_exactly) {
  for (const int done : {0, 1, 13, 14, 30}) {
    ConcatLoader first(set_, whole_set(*set_), options(10, 1, 7));
    for (int step = 0; step < done; ++step) first.next();
    const Json state = Json::parse(first.state().dump());
    ConcatLoader second(set_, whole_set(*set_), options(10, 1, 7));
    second.restore(state);
    for (int step = 0; step < 20; ++step) EXPECT_EQ(first_tokens(first), first_tokens(second));
  }
}

TEST_F(ConcatLoaderTest, a_state_of_another_order_is_refused) {
  ConcatLoader loader(set_, whole_set(*set_), options(10, 1, 7));
  loader.next();
  const Json state = loader.state();
  ConcatLoader other_length(set_, whole_set(*set_), options(20, 1, 7));
  EXPECT_THAT(message_of<DataError>([&] { other_length.restore(state); }), HasSubstr("sequence_tokens 10"));
  ConcatLoader other_range(set_, {0, 500}, options(10, 1, 7));
  EXPECT_THAT(message_of<DataError>([&] { other_range.restore(state); }), HasSubstr("range_end"));
  EXPECT_THAT(message_of<DataError>([&] { loader.restore(Json::array()); }), HasSubstr("no \"epoch\""));
  Json beyond = state;
  beyond["window"] = 99;
  EXPECT_THAT(message_of<DataError>([&] { loader.restore(beyond); }), HasSubstr("window 99 of 99"));
}

TEST_F(ConcatLoaderTest, a_set_shorter_than_one_window_says_what_is_there_and_what_is_needed) {
  ConcatLoader just_enough(set_, whole_set(*set_), options(999, 1, 1));
  EXPECT_EQ(just_enough.windows(), 1);
  EXPECT_THAT(
      message_of<DataError>([&] { ConcatLoader loader(set_, whole_set(*set_), options(1000, 1, 1)); }),
      AllOf(HasSubstr("there are 1,000 tokens"), HasSubstr("needs 1,001")));
}

TEST_F(ConcatLoaderTest, ids_outside_the_models_vocabulary_are_refused) {
  LoaderOptions o = options(10, 99, 1);
  o.vocab_size = 991;  // the last target of the last window is 990
  ConcatLoader enough(set_, whole_set(*set_), o);
  enough.next();
  o.vocab_size = 990;
  ConcatLoader short_by_one(set_, whole_set(*set_), o);
  EXPECT_THAT(message_of<DataError>([&] { short_by_one.next(); }), HasSubstr("has the id 990"));
}

TEST_F(ConcatLoaderTest, options_that_contradict_themselves_are_refused) {
  LoaderOptions o = options(10, 0, 1);
  EXPECT_THROW(ConcatLoader(set_, whole_set(*set_), o), ConfigError);
  o = options(10, 1, 1);
  o.sp_rank = 1;
  EXPECT_THROW(ConcatLoader(set_, whole_set(*set_), o), ConfigError);
}

TEST_F(ConcatLoaderTest, held_out_split_cuts_between_documents_and_loses_nothing) {
  for (const double fraction : {0.001, 0.1, 0.25, 0.9, 0.999}) {
    const HeldOutSplit split = split_held_out(*set_, fraction);
    EXPECT_EQ(split.train.begin, 0);
    EXPECT_EQ(split.train.end, split.held_out.begin);
    EXPECT_EQ(split.held_out.end, kTokens);
    EXPECT_GT(split.train.size(), 0);
    EXPECT_GT(split.held_out.size(), 0);
    // Documents of 1, 2, 3, ... tokens end at the triangular numbers.
    bool at_border = false;
    for (int64_t n = 1, end = 1; end < kTokens; end += ++n) at_border |= end == split.train.end;
    EXPECT_TRUE(at_border) << split.train.end;
    EXPECT_NEAR(static_cast<double>(split.held_out.size()), kTokens * fraction, 45);
  }
  const TemporaryFolder other;
  EXPECT_EQ(split_held_out(*counting_set(other, kTokens), 0.1).train.end, 900);  // one document
  EXPECT_THROW(split_held_out(*set_, 1.0), ConfigError);
}

TEST_F(ConcatLoaderTest, evaluation_walks_every_window_once_in_order_and_in_step_on_all_ranks) {
  const TokenRange range{100, 571};  // 47 windows of 10
  for (const int dp_size : {1, 2, 3}) {
    std::vector<int64_t> seen;
    for (int dp = 0; dp < dp_size; ++dp) {
      LoaderOptions o = options(10, 5, 1);
      o.dp_size = dp_size;
      o.dp_index = dp;
      EvaluationWalk walk(set_, range, o);
      int64_t batches = 0;
      while (const auto batch = walk.next()) {
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
      EXPECT_EQ(batches, walk.batches());
    }
    EXPECT_TRUE(dp_size > 1 || std::ranges::is_sorted(seen));
    std::ranges::sort(seen);
    ASSERT_EQ(seen.size(), 47);
    for (int64_t w = 0; w < 47; ++w) EXPECT_EQ(seen[static_cast<size_t>(w)], 100 + w * 10);
  }
  EvaluationWalk limited(set_, range, options(10, 5, 1));
  limited.limit_windows(6);
  EXPECT_EQ(limited.next()->tokens.size(0), 5);
  EXPECT_EQ(limited.next()->tokens.size(0), 1);
  EXPECT_FALSE(limited.next().has_value());
}

TEST(SampleOrder, is_a_permutation_for_every_count) {
  for (const int64_t count : {1, 2, 3, 4, 5, 16, 17, 255, 1000, 4097}) {
    const SampleOrder order(count, 3, 1);
    std::set<int64_t> seen;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t sample = order[i];
      EXPECT_TRUE(sample >= 0 && sample < count);
      seen.insert(sample);
    }
    EXPECT_EQ(static_cast<int64_t>(seen.size()), count);
  }
}

TEST(SampleOrder, moves_samples_evenly_over_epochs) {
  // Where sample order[0] lands over many epochs: each of 8 places about equally often (chi-square, 7
  // degrees).
  std::array<double, 8> hits{};
  constexpr int kEpochs = 4000;
  for (int epoch = 0; epoch < kEpochs; ++epoch) ++hits.at(static_cast<size_t>(SampleOrder(8, 1, epoch)[0]));
  double chi_square = 0;
  for (const double h : hits) chi_square += (h - kEpochs / 8.0) * (h - kEpochs / 8.0) / (kEpochs / 8.0);
  EXPECT_LT(chi_square, 24.3);  // 99.9 %
}

}  // namespace
}  // namespace trireme
