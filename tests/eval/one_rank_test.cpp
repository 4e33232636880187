// P ranks beside one, on a model without a reference file: equal, or the gradient that differs is named.
#include "trireme/eval/one_rank.h"

#include <mutex>

#include <gtest/gtest.h>

#include "trireme/comm/thread_world.h"
#include "trireme/model/embedding.h"

#include "tests/engine/tiny_model.h"

namespace trireme::one_rank_test {
namespace {

constexpr int64_t kTokens = 48;

VerifyResult compared(int ranks, const std::filesystem::path& model, const EngineOptions& options,
                      const ModelFamilies& families = model_families()) {
  VerifyResult result;
  std::mutex mutex;
  run_ranks_as_threads(ranks, [&](World& world) {
    const auto part_of_step = [](const StepPart& part) {
      const SampleLayout layout{kTokens, part.ulysses, part.ring};
      return StepBatches{
          testing::slice_of_batch(2, 70, 7 + static_cast<uint64_t>(part.dp_index), layout, part.sp_rank)};
    };
    const VerifyResult of_rank = compare_with_one_rank(world, model, options, part_of_step, 1e-4, families);
    const std::lock_guard<std::mutex> lock(mutex);
    if (world.rank() == ranks - 1) result = of_rank;
  });
  return result;
}

TEST(OneRank, has_the_numbers_of_ranks_that_share_samples_shards_and_data) {
  const testing::TemporaryFolder folder;
  testing::write_tiny_model(folder.path(), testing::tiny_llama_config());
  EngineOptions sharded{.precision = Precision::bf16, .ulysses = 2, .zero = ZeroStage::parameters};
  sharded.update_in_backward = true;
  for (const auto& [ranks, options] :
       std::vector<std::pair<int, EngineOptions>>{{4, sharded}, {2, {.ring = 2}}, {1, {}}}) {
    const VerifyResult result = compared(ranks, folder.path(), options);
    EXPECT_TRUE(result.passed()) << result.table(5);
    EXPECT_GT(result.tensors.size(), 15U);
    EXPECT_GT(result.reference_loss, 1);
    EXPECT_EQ(result.batch, ranks == 4 ? 4 : 2);
  }
}

// Larger on a rank that holds a part of its samples.
class WrongEmbedding final : public Embedding {
 public:
  explicit WrongEmbedding(const ModelConfig& config) : right_(make_word_embedding(config)) {}
  void forward(const UnitWeights& weights, const EmbeddedTokens& embedded, at::Tensor x_TM) const override {
    right_->forward(weights, embedded, x_TM);
    if (embedded.tokens.size(0) < 2 * kTokens) x_TM.mul_(1.01);
  }
  void backward(const UnitWeights& weights, UnitGradients& gradients, const EmbeddedTokens& embedded,
                const at::Tensor& dx_TM) const override {
    right_->backward(weights, gradients, embedded, dx_TM);
  }

 private:
  std::unique_ptr<const Embedding> right_;
};

TEST(OneRank, finds_a_family_that_is_another_model_on_several_ranks) {
  const testing::TemporaryFolder folder;
  testing::write_tiny_model(folder.path(), testing::tiny_llama_config());
  ModelFamily broken = *read_model_config(folder.path()).family;
  broken.embedding = make_part<Embedding, WrongEmbedding>;
  const VerifyResult result = compared(2, folder.path(), {.ulysses = 2}, {&broken});
  EXPECT_FALSE(result.passed());
  EXPECT_GT(result.tensors.front().error, 1e-3);
}

}  // namespace
}  // namespace trireme::one_rank_test
