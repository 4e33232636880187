#include "trireme/eval/loss_by_position.h"

#include <cmath>
#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/comm/thread_world.h"
#include "trireme/data/indexed_dataset_writer.h"
#include "trireme/engine/assemble.h"

#include "tests/engine/tiny_model.h"

namespace trireme {
namespace {

constexpr int64_t kVocabulary = 70;

class LossByPosition : public ::testing::Test {
 protected:
  LossByPosition() {
    testing::write_tiny_model(folder_.path() / "model", testing::tiny_llama_config());
    IndexedDatasetWriter writer(folder_.path() / "set", kVocabulary);
    std::vector<int32_t> ids;
    for (int32_t i = 0; i < 200; ++i) ids.push_back(i * i % kVocabulary);
    writer.add_document(ids);
    writer.finish();
  }

  PositionLoss evaluate(int ranks, int ulysses, int64_t tokens, const std::vector<int64_t>& edges) {
    PositionLoss result;
    std::mutex mutex;
    run_ranks_as_threads(ranks, [&](World& world) {
      EngineOptions options;
      options.ulysses = ulysses;
      const auto engine = assemble(world, folder_.path() / "model", options);
      const auto set = std::make_shared<IndexedDataset>(folder_.path() / "set");
      LoaderOptions loader;
      loader.sequence_tokens = tokens;
      loader.dp_size = engine->mesh().dp_size;
      loader.dp_index = engine->mesh().dp_index;
      loader.sp_size = ulysses;
      loader.sp_rank = engine->mesh().sp->rank();
      EvaluationWalk walk(set, whole_set(*set), loader);
      const PositionLoss of_rank = evaluate_loss_by_position(*engine, walk, edges);
      const std::lock_guard<std::mutex> lock(mutex);
      if (!result.buckets.empty()) {
        EXPECT_EQ(result.to_json(), of_rank.to_json()) << "ranks disagree";
      }
      result = of_rank;
    });
    return result;
  }

  testing::TemporaryFolder folder_;
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
  const PositionLoss result = evaluate(1, 1, S, equal_edges(S, S));
  ASSERT_EQ(result.buckets.size(), static_cast<size_t>(S));
  for (size_t i = 0; i < sums.size(); ++i) {
    EXPECT_EQ(static_cast<double>(result.buckets[i].target_tokens), counts[i]);
    EXPECT_NEAR(result.buckets[i].mean(), sums[i] / counts[i], 1e-4) << "position " << i;
  }
}

TEST_F(LossByPosition, is_the_same_however_the_ranks_are_split) {
  const std::vector<int64_t> edges = equal_edges(37, 5);
  const PositionLoss one = evaluate(1, 1, 37, edges);
  EXPECT_EQ(one.target_tokens(), one.windows * 37);
  for (const auto& [ranks, ulysses] : std::vector<std::pair<int, int>>{{2, 2}, {3, 3}, {4, 2}, {3, 1}}) {
    const PositionLoss split = evaluate(ranks, ulysses, 37, edges);
    for (size_t i = 0; i < one.buckets.size(); ++i) {
      EXPECT_EQ(split.buckets[i].target_tokens, one.buckets[i].target_tokens);
      EXPECT_NEAR(split.buckets[i].mean(), one.buckets[i].mean(), 1e-5) << ranks << " ranks, bucket " << i;
    }
  }
}

TEST(PositionEdges, cover_the_sequence) {
  EXPECT_EQ(power_of_two_edges(1024), (std::vector<int64_t>{0, 64, 128, 256, 512, 1024}));
  EXPECT_EQ(power_of_two_edges(50), (std::vector<int64_t>{0, 50}));
  EXPECT_EQ(equal_edges(10, 4), (std::vector<int64_t>{0, 2, 5, 7, 10}));
  EXPECT_EQ(equal_edges(2, 4), (std::vector<int64_t>{0, 1, 2}));
  EXPECT_THROW(equal_edges(10, 0), ConfigError);
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

}  // namespace
}  // namespace trireme
