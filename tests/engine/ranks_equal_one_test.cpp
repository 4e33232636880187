// The laws of section 3 of the design: any number of ranks, any recompute policy and any tile size give the
// loss and every gradient of one rank with nothing recomputed.
#include <cmath>
#include <mutex>

#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/comm/thread_world.h"
#include "trireme/engine/assemble.h"
#include "trireme/model/checkpoint_files.h"

#include "tests/engine/step_outcome.h"
#include "tests/engine/tiny_model.h"
#include "tests/support/relative_error.h"

namespace trireme::ranks_equal_one_test {
namespace {

using testing::expect_same;
using testing::Outcome;
using testing::TemporaryFolder;

// `micro` micro-batches of B samples of S tokens; the ranks of a dp index take the samples of that index.
Outcome run(const std::filesystem::path& model, int ranks, const EngineOptions& options, int64_t batch,
            int64_t tokens, int64_t vocabulary, int micro = 1) {
  Outcome outcome;
  std::mutex lock;
  run_ranks_as_threads(ranks, [&](World& world) {
    const auto engine = assemble(world, model, options);
    StepBatches batches;
    const int dp = engine->mesh().dp_index;
    for (int at = 0; at < micro; ++at)
      batches.push_back(testing::slice_of_batch(batch, tokens, vocabulary,
                                                100 + at * engine->mesh().dp_size + dp, options.ulysses,
                                                engine->mesh().ulysses->rank()));
    Outcome mine{engine->accumulate_gradients(batches), testing::all_gradients(*engine)};
    const std::lock_guard guard(lock);
    if (world.rank() == 0) {
      outcome = std::move(mine);
    } else if (!outcome.gradients.empty()) {
      for (const auto& [name, gradient] : mine.gradients)
        EXPECT_TRUE(at::equal(gradient, outcome.gradients.at(name))) << name << " differs between ranks";
    }
  });
  return outcome;
}

TEST(Engine, any_ulysses_degree_gives_the_gradients_of_one_rank) {
  for (const auto& [H, K] :
       std::vector<std::pair<int, int>>{{4, 2}, {6, 3}, {3, 3}, {6, 2}, {4, 1}, {7, 7}}) {
    TemporaryFolder folder;
    Json config = testing::tiny_llama_config(H, K);
    testing::write_tiny_model(folder.path(), config);
    for (const int tokens : {61, 3}) {
      const Outcome one = run(folder.path(), 1, {}, 2, tokens, 70);
      for (int ranks = 2; ranks <= std::min({H, 4, tokens}); ++ranks) {
        EngineOptions options;
        options.ulysses = ranks;
        expect_same(run(folder.path(), ranks, options, 2, tokens, 70), one, 2e-5,
                    cat(H, "/", K, " heads, ", tokens, " tokens, ", ranks, " ranks"));
      }
    }
  }
}

// Beyond the length of pre-training the frequencies follow the length of the whole sample, not of a rank's
// share.
TEST(Engine, dynamic_ntk_follows_the_whole_sequence_on_any_number_of_ranks) {
  TemporaryFolder folder;
  Json config = testing::tiny_llama_config();
  config["max_position_embeddings"] = 32;
  testing::write_tiny_model(folder.path(), config);
  const Outcome plain = run(folder.path(), 1, {}, 2, 61, 70);
  config["rope_scaling"] = {{"type", "dynamic"}, {"factor", 4.0}};
  testing::write_tiny_model(folder.path(), config);
  const Outcome one = run(folder.path(), 1, {}, 2, 61, 70);
  EXPECT_GT(std::abs(one.step.loss / plain.step.loss - 1), 1e-4) << "the scaling does nothing";
  for (const int ranks : {2, 4}) {
    EngineOptions options;
    options.ulysses = ranks;
    expect_same(run(folder.path(), ranks, options, 2, 61, 70), one, 2e-5, cat(ranks, " ranks"));
  }
}

// The same values as two parameters, embedding and head: their gradients sum to the one of the tied
// parameter.
TEST(Engine, a_tied_gradient_is_the_sum_of_those_of_its_two_uses) {
  const std::string embedding = "model.embed_tokens.weight", head = "lm_head.weight";
  TemporaryFolder tied, untied;
  Json config = testing::tiny_llama_config();
  config["tie_word_embeddings"] = true;
  testing::write_tiny_model(tied.path(), config);
  config["tie_word_embeddings"] = false;
  const ModelConfig two = parse_model_config(config, "two matrices");
  const ModelLayout layout = make_model_layout(two);
  const CheckpointReader reader(tied.path());
  write_checkpoint(untied.path(), two, layout,
                   [&](int unit) {
                     UnitSpec spec = layout.units.at(static_cast<size_t>(unit));
                     for (ParameterSpec& parameter : spec.parameters)
                       if (parameter.name == head) parameter.name = embedding;
                     at::Tensor flat = at::zeros({spec.elements});
                     reader.read_unit(spec, flat);
                     return flat;
                   },
                   at::kFloat, {});
  for (const auto& [ranks, zero] :
       {std::pair{1, ZeroStage::none}, {2, ZeroStage::none}, {2, ZeroStage::parameters}}) {
    EngineOptions options;
    options.ulysses = ranks;
    options.zero = zero;
    const Outcome one = run(tied.path(), ranks, options, 2, 61, 70, /*micro=*/2);
    const Outcome both = run(untied.path(), ranks, options, 2, 61, 70, /*micro=*/2);
    EXPECT_NEAR(one.step.loss / both.step.loss, 1, 1e-6);
    const at::Tensor sum = both.gradients.at(embedding) + both.gradients.at(head);
    EXPECT_LT(testing::relative_error(one.gradients.at(embedding), sum), 2e-5)
        << ranks << " ranks, ZeRO " << int(zero);
    EXPECT_GT(testing::relative_error(both.gradients.at(head), sum), 0.05) << "one use is next to nothing";
    EXPECT_GT(testing::relative_error(both.gradients.at(embedding), sum), 0.05)
        << "one use is next to nothing";
  }
}

TEST(Engine, data_parallel_times_ulysses_gives_the_gradients_of_accumulation_on_one_rank) {
  TemporaryFolder folder;
  testing::write_tiny_model(folder.path(), testing::tiny_llama_config());
  const Outcome one = run(folder.path(), 1, {}, 1, 61, 70, /*micro=*/4);
  EngineOptions options;
  options.ulysses = 2;
  expect_same(run(folder.path(), 4, options, 1, 61, 70, /*micro=*/2), one, 2e-5, "dp 2 x ulysses 2");
}

TEST(Engine, tiles_give_the_gradients_of_the_whole) {
  TemporaryFolder folder;
  testing::write_tiny_model(folder.path(), testing::tiny_llama_config());
  EngineOptions whole;
  whole.tile_tokens = 1000;
  whole.logits_tile_tokens = 1000;
  const Outcome expected = run(folder.path(), 1, whole, 2, 61, 70);
  for (const int64_t tile : {1, 7, 61, 100}) {
    EngineOptions options;
    options.tile_tokens = tile;
    options.logits_tile_tokens = tile + 2;
    expect_same(run(folder.path(), 1, options, 2, 61, 70), expected, 2e-5, cat("tiles of ", tile));
  }
}

TEST(Engine, bf16_is_as_near_to_fp32_with_ranks_as_without) {
  TemporaryFolder folder;
  testing::write_tiny_model(folder.path(), testing::tiny_llama_config());
  const Outcome truth = run(folder.path(), 1, {}, 1, 61, 70);
  for (const Bf16Matmul matmul : {Bf16Matmul::native, Bf16Matmul::fp32}) {
    EngineOptions options;
    options.precision = Precision::bf16;
    options.bf16_matmul = matmul;
    const Outcome one = run(folder.path(), 1, options, 1, 61, 70);
    options.ulysses = 2;
    const Outcome two = run(folder.path(), 2, options, 1, 61, 70);
    EXPECT_NEAR(one.step.loss, truth.step.loss, 0.02);
    for (const auto& [name, gradient] : truth.gradients) {
      const double alone = testing::relative_error(one.gradients.at(name), gradient);
      EXPECT_LT(alone, 0.06) << name;
      EXPECT_LT(testing::relative_error(two.gradients.at(name), gradient), 2 * alone + 0.002) << name;
    }
  }
}

TEST(Engine, a_step_without_targets_and_tokens_outside_the_vocabulary_are_data_errors) {
  TemporaryFolder folder;
  testing::write_tiny_model(folder.path(), testing::tiny_llama_config());
  run_ranks_as_threads(1, [&](World& world) {
    const auto engine = assemble(world, folder.path(), {});
    TokenBatch batch = testing::slice_of_batch(1, 10, 70, 1, 1, 0);
    TokenBatch empty = batch;
    empty.targets = at::full_like(batch.targets, kIgnoredLabel);
    EXPECT_THROW(engine->train_step({empty}, 1e-3), DataErrorOnAllRanks);
    batch.tokens[0][3] = 70;
    EXPECT_THROW(engine->train_step({batch}, 1e-3), DataError);
  });
}

// Wherever the optimizer steps.
TEST(Engine, a_loss_that_is_not_finite_leaves_the_parameters_alone) {
  TemporaryFolder folder, disk;
  testing::write_tiny_model(folder.path(), testing::tiny_llama_config());
  EngineOptions offloaded;
  offloaded.offload.optimizer = Offload::disk;
  offloaded.offload.folder = disk.path();
  for (const EngineOptions& options : {EngineOptions(), offloaded})
    run_ranks_as_threads(1, [&](World& world) {
      const auto engine = assemble(world, folder.path(), options);
      const int head_unit = engine->layout().head_unit();
      at::Tensor head = engine->unit_values(head_unit).clone();
      head[0] = std::nan("");
      testing::restore_unit(*engine, head_unit, "master", head);
      const at::Tensor before = engine->unit_values(1).clone();
      EXPECT_THROW(engine->train_step({testing::slice_of_batch(1, 10, 70, 1, 1, 0)}, 1e-3), DataError);
      EXPECT_TRUE(at::equal(engine->unit_values(1), before));
      EXPECT_EQ(engine->progress().optimizer_steps, 0);
    });
}

}  // namespace
}  // namespace trireme::ranks_equal_one_test
