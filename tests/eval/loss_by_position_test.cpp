#include "trireme/eval/loss_by_position.h"

#include <cmath>
#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/eval/evaluated_set.h"

namespace trireme {
namespace {

class LossByPosition : public testing::EvaluatedSet {
 protected:
  LossByPosition() : EvaluatedSet({{50}, {1}, {9}, {85}, {36}, {19}}) {}

  PositionLoss evaluate(int ranks, int ulysses, int ring, int64_t tokens, const std::vector<int64_t>& edges,
                        Packing packing) {
    PositionLoss result;
    std::mutex mutex;
    on_ranks(ranks, ulysses, ring, tokens, packing, [&](Engine& engine, const Rows& rows) {
      EvaluationLoader loader = rows.loader();
      const PositionLoss of_rank = evaluate_loss_by_position(engine, loader, edges);
      const std::lock_guard<std::mutex> lock(mutex);
      if (!result.buckets.empty()) {
        EXPECT_EQ(result.to_json(), of_rank.to_json()) << "ranks disagree";
      }
      result = of_rank;
    });
    return result;
  }
};

// The oracle: log-softmax of the logits of one rank, in fp64, window by window.
TEST_F(LossByPosition, is_the_mean_of_each_positions_losses) {
  constexpr int64_t S = 48;
  std::vector<double> sums(S), counts(S);
  run_ranks_as_threads(1, [&](World& world) {
    const auto engine = assemble(world, folder_.path() / "model", {});
    const IndexedDataset set(folder_.path() / "set");
    for (int64_t begin = 0; begin + S < set.tokens(); begin += S) {
      TokenBatch batch;
      batch.layout = {S, 1};
      batch.tokens = at::empty({1, S}, at::kLong);
      batch.targets = at::empty({1, S}, at::kLong);
      set.read(begin, S, batch.tokens.data_ptr<int64_t>());
      set.read(begin + 1, S, batch.targets.data_ptr<int64_t>());
      engine->evaluate(batch, [&](int64_t first_row, const at::Tensor& logits) {
        const at::Tensor wide = logits.to(at::kDouble);
        for (int64_t row = 0; row < wide.size(0); ++row) {
          const int64_t position = first_row + row;
          double sum = 0;
          for (int64_t v = 0; v < kVocabulary; ++v) sum += std::exp(wide[row][v].item<double>());
          const int64_t target = batch.targets[0][position].item<int64_t>();
          sums[static_cast<size_t>(position)] += std::log(sum) - wide[row][target].item<double>();
          counts[static_cast<size_t>(position)] += 1;
        }
      });
    }
  });
  const PositionLoss result = evaluate(1, 1, 1, S, equal_edges(S, S), Packing::concat);
  ASSERT_EQ(result.buckets.size(), static_cast<size_t>(S));
  for (size_t i = 0; i < sums.size(); ++i) {
    EXPECT_EQ(static_cast<double>(result.buckets[i].target_tokens), counts[i]);
    EXPECT_NEAR(result.buckets[i].mean(), sums[i] / counts[i], 1e-4) << "position " << i;
  }
}

struct Split {
  int ranks;
  int ulysses;
  int ring;
};

TEST_F(LossByPosition, is_the_same_however_the_ranks_are_split) {
  const std::vector<int64_t> edges = equal_edges(37, 5);
  for (const Packing packing : {Packing::concat, Packing::documents, Packing::none}) {
    const PositionLoss one = evaluate(1, 1, 1, 37, edges, packing);
    for (const Split& split : {Split{2, 2, 1}, Split{3, 3, 1}, Split{4, 2, 1}, Split{3, 1, 1}, Split{2, 1, 2},
                               Split{3, 1, 3}, Split{4, 2, 2}, Split{4, 1, 2}}) {
      const PositionLoss ranks = evaluate(split.ranks, split.ulysses, split.ring, 37, edges, packing);
      for (size_t i = 0; i < one.buckets.size(); ++i) {
        EXPECT_EQ(ranks.buckets[i].target_tokens, one.buckets[i].target_tokens);
        EXPECT_NEAR(ranks.buckets[i].mean(), one.buckets[i].mean(), 1e-5)
            << name_of(packing) << " " << split.ranks << " ranks, bucket " << i;
      }
    }
  }
}

TEST_F(LossByPosition, counts_only_places_with_a_target) {
  const std::vector<int64_t> edges = equal_edges(37, 37);
  const PositionLoss concat = evaluate(1, 1, 1, 37, edges, Packing::concat);
  EXPECT_EQ(concat.samples, 199 / 37);
  EXPECT_EQ(concat.target_tokens(), concat.samples * 37);
  const PositionLoss documents = evaluate(1, 1, 1, 37, edges, Packing::documents);
  // In the windows' 185 tokens five documents end: after 50, 51, 60, 145 and 181 tokens of the set.
  EXPECT_EQ(documents.target_tokens(), documents.samples * 37 - 5);
  // A position counts from the begin of the document in its window: from there comes the context.
  std::vector<int64_t> expected(37, 0);
  for (int64_t token = 0, begin = 0; token < 185; ++token) {
    const auto ends_at = [](int64_t end) {
      return end == 50 || end == 51 || end == 60 || end == 145 || end == 181;
    };
    if (token % 37 == 0 || ends_at(token)) begin = token;
    if (!ends_at(token + 1)) ++expected[static_cast<size_t>(token - begin)];
  }
  for (size_t position = 0; position < expected.size(); ++position)
    EXPECT_EQ(documents.buckets[position].target_tokens, expected[position]) << position;
  const PositionLoss none = evaluate(1, 1, 1, 37, edges, Packing::none);
  EXPECT_EQ(none.target_tokens(), 200 - 6);  // all tokens but the first of each document
}

TEST(PositionEdges, cover_the_sequence) {
  EXPECT_EQ(power_of_two_edges(1024), (std::vector<int64_t>{0, 64, 128, 256, 512, 1024}));
  EXPECT_EQ(power_of_two_edges(50), (std::vector<int64_t>{0, 50}));
  EXPECT_EQ(equal_edges(10, 4), (std::vector<int64_t>{0, 2, 5, 7, 10}));
  EXPECT_EQ(equal_edges(2, 4), (std::vector<int64_t>{0, 1, 2}));
}

TEST(PositionLoss, table_and_json_show_every_bucket_and_the_whole) {
  PositionLoss loss;
  loss.sequence_tokens = 2048;
  loss.buckets = {{0, 1024, 10, 30}, {1024, 2048, 30, 30}};
  EXPECT_DOUBLE_EQ(loss.loss(), 1.5);
  EXPECT_THAT(loss.table(), ::testing::HasSubstr("1,024 - 2,047"));
  EXPECT_THAT(loss.table(), ::testing::HasSubstr("1.5000"));
  EXPECT_EQ(loss.to_json()["by_position"].size(), 2U);
  EXPECT_DOUBLE_EQ(loss.to_json()["by_position"][0]["loss"], 3);
}

TEST(PositionLoss, of_positions_that_no_document_reaches_is_unknown) {
  PositionLoss loss;
  loss.buckets = {{0, 1024, 10, 30}, {1024, 2048, 0, 0}};
  EXPECT_TRUE(loss.to_json()["by_position"][1]["loss"].is_null());
  EXPECT_THAT(loss.table(), ::testing::HasSubstr("2,047              0         -           -\n"));
}

}  // namespace
}  // namespace trireme
