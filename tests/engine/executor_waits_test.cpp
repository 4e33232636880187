// What is offloaded travels beside the executor: the executor's thread makes no copy between device and host
// for which it waits, so that on a GPU it stays ahead of the work that it gives.
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/comm/thread_world.h"
#include "trireme/engine/assemble.h"

#include "tests/engine/tiny_model.h"
#include "tests/support/guarded_device.h"

namespace trireme::executor_waits_test {
namespace {

using testing::TemporaryFolder;

constexpr int64_t kVocabulary = 200, kTokens = 26;
constexpr int64_t kReadsOfAStep = 4;

// What each rank's thread waits for in two steps: tokens, positions, the reference kernel's masks; and copies
// of units, where there are some.
std::vector<int64_t> blocking_bytes(const std::filesystem::path& model, const EngineOptions& options) {
  std::vector<int64_t> bytes(static_cast<size_t>(options.ulysses));
  run_ranks_as_threads(options.ulysses, [&](World& world) {
    const auto engine = assemble(world, model, options);
    StepBatches batches;
    for (uint64_t micro_batch = 0; micro_batch < (options.update_in_backward ? 1 : 2); ++micro_batch)
      batches.push_back(
          testing::slice_of_batch(1, kTokens, kVocabulary, micro_batch, options.ulysses, world.rank()));
    const int64_t before = testing::blocking_copy_bytes();
    for (int step = 0; step < 2; ++step) engine->train_step(batches, 1e-3);
    bytes[static_cast<size_t>(world.rank())] = testing::blocking_copy_bytes() - before;
  });
  return bytes;
}

TEST(WalkWithOffload, waits_for_no_copy_that_it_would_not_wait_for_without) {
  const TemporaryFolder model, disk;
  Json config = testing::tiny_llama_config(4, 4);
  config["num_hidden_layers"] = 3;
  config["vocab_size"] = kVocabulary;
  testing::write_tiny_model(model.path(), config);
  for (const int ranks : {1, 2})
    for (const int stage : {1, 2, 3})
      for (const bool in_backward : {false, true}) {
        EngineOptions options;
        options.device = testing::guarded_device();
        options.attention = AttentionKernel::reference;
        options.precision = Precision::bf16;
        options.bf16_matmul = Bf16Matmul::native;
        options.ulysses = ranks;
        options.zero = static_cast<ZeroStage>(stage);
        options.update_in_backward = in_backward;
        options.optimizer.max_grad_norm = in_backward ? 0 : 1;
        const std::vector<int64_t> expected = blocking_bytes(model.path(), options);
        for (const Offload offload : {Offload::cpu, Offload::disk}) {
          SCOPED_TRACE(cat(name_of(offload), ", ", ranks, " ranks, ZeRO ", stage,
                           in_backward ? ", updates in backward" : ""));
          if (stage == 3) options.offload.parameters = offload;
          options.offload.optimizer = options.offload.activations = offload;
          options.offload.folder = offload == Offload::disk ? disk.path() : std::filesystem::path();
          EXPECT_EQ(blocking_bytes(model.path(), options), expected);
        }
        if (stage < 3) continue;
        options.offload = {};
        options.offload.parameters = Offload::cpu;
        EXPECT_EQ(blocking_bytes(model.path(), options), expected) << "the optimizer stays on the device";
      }
}

// Of a mixture of experts also how many rows each expert has: once a tile, forward and backward.
TEST(StepOfTraining, reads_the_rows_of_experts_once_a_tile_and_pass) {
  constexpr int64_t kLayers = 3, kTile = 8;
  const TemporaryFolder model;
  Json config = testing::tiny_mixture_config(4, 4);
  config["num_hidden_layers"] = kLayers;
  config["vocab_size"] = kVocabulary;
  testing::write_tiny_model(model.path(), config);
  // Of groups of two layers the first of three runs forward twice.
  struct Case {
    Recompute recompute;
    int64_t every, passes;
  };
  for (const Case& test : {Case{Recompute::none, 1, 2 * kLayers},
                           {Recompute::full, 1, 2 * kLayers},
                           {Recompute::full, 2, 2 * kLayers + 1}})
    run_ranks_as_threads(1, [&](World& world) {
      EngineOptions options;
      options.device = testing::guarded_device();
      options.attention = AttentionKernel::reference;
      options.tile_tokens = kTile;
      options.recompute.policy = test.recompute;
      options.recompute.checkpoint_every = test.every;
      const auto engine = assemble(world, model.path(), options);
      const StepBatches batches{testing::slice_of_batch(1, kTokens, kVocabulary, 0, 1, 0)};
      const int64_t before = testing::host_reads();
      engine->train_step(batches, 1e-3);
      constexpr int64_t kTiles = (kTokens + kTile - 1) / kTile;
      EXPECT_EQ(testing::host_reads() - before, kReadsOfAStep + test.passes * kTiles)
          << name_of(test.recompute) << test.every;
    });
}

// What the host reads in a step, for which it waits: on one rank the loss and the gradient norm, each also
// when ranks agree on it, and how many targets there are. Neither layers nor micro-batches add to it.
TEST(StepOfTraining, reads_its_loss_and_its_norm_from_the_device_and_nothing_else) {
  for (const int layers : {2, 4}) {
    const TemporaryFolder model;
    Json config = testing::tiny_llama_config(4, 4);
    config["num_hidden_layers"] = layers;
    config["vocab_size"] = kVocabulary;
    testing::write_tiny_model(model.path(), config);
    for (const int stage : {0, 3})
      for (const uint64_t micro_batches : {1, 3}) {
        SCOPED_TRACE(cat(layers, " layers, ZeRO ", stage, ", ", micro_batches, " micro-batches"));
        run_ranks_as_threads(1, [&](World& world) {
          EngineOptions options;
          options.device = testing::guarded_device();
          options.attention = AttentionKernel::reference;
          options.zero = static_cast<ZeroStage>(stage);
          const auto engine = assemble(world, model.path(), options);
          StepBatches batches;
          for (uint64_t micro_batch = 0; micro_batch < micro_batches; ++micro_batch)
            batches.push_back(testing::slice_of_batch(1, kTokens, kVocabulary, micro_batch, 1, 0));
          const int64_t before = testing::host_reads();
          engine->train_step(batches, 1e-3);
          EXPECT_EQ(testing::host_reads() - before, kReadsOfAStep);
        });
      }
  }
}

// Where documents begin is copied once a batch, and which key head a value head reads not at all.
TEST(StepOfTraining, waits_no_more_with_more_delta_nets) {
  const auto copied_bytes = [](int ranks, int delta_nets) {
    const TemporaryFolder model;
    Json config = testing::tiny_qwen3_5_config(4, 4);
    config["layer_types"] = std::vector<std::string>(static_cast<size_t>(delta_nets), "linear_attention");
    config["layer_types"].push_back("full_attention");
    config["num_hidden_layers"] = delta_nets + 1;
    config["vocab_size"] = kVocabulary;
    testing::write_tiny_model(model.path(), config);
    std::vector<int64_t> bytes(static_cast<size_t>(ranks));
    run_ranks_as_threads(ranks, [&](World& world) {
      EngineOptions options;
      options.device = testing::guarded_device();
      options.attention = AttentionKernel::reference;
      options.ulysses = ranks;
      const auto engine = assemble(world, model.path(), options);
      const StepBatches batches = {testing::slice_of_batch(1, kVocabulary, 3, {kTokens, ranks, 1},
                                                           world.rank(), {Documents({0, 5, 6, kTokens})})};
      const int64_t before = testing::blocking_copy_bytes();
      engine->train_step(batches, 1e-3);
      bytes[static_cast<size_t>(world.rank())] = testing::blocking_copy_bytes() - before;
    });
    return bytes;
  };
  for (const int ranks : {1, 3})
    EXPECT_EQ(copied_bytes(ranks, 3), copied_bytes(ranks, 1)) << ranks << " ranks";
}

}  // namespace
}  // namespace trireme::executor_waits_test
