// What is offloaded to the host travels beside the walk: the walk's thread makes no copy of a unit's size that it waits for,
// so that on a GPU it is always ahead of the work that it gives.
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/comm/thread_world.h"
#include "trireme/engine/assemble.h"

#include "tests/engine/tiny_model.h"
#include "tests/support/guarded_device.h"

namespace trireme::walk_waits_test {
namespace {

using testing::TemporaryFolder;

constexpr int64_t kVocabulary = 200, kTokens = 26;

TEST(WalkWithOffload, makes_no_copy_of_a_unit_that_it_waits_for) {
  const TemporaryFolder model, disk;
  Json config = testing::tiny_llama_config(8, 8);
  config["num_hidden_layers"] = 3;
  config["vocab_size"] = kVocabulary;
  testing::write_tiny_model(model.path(), config);
  for (const Offload place : {Offload::cpu, Offload::disk})
    for (const int ranks : {1, 2})
      for (int stage = 0; stage <= 3; ++stage)
        for (const bool in_backward : {false, true}) {
          SCOPED_TRACE(cat(name_of(place), ", ", ranks, " ranks, ZeRO ", stage,
                           in_backward ? ", updates in backward" : ""));
          EngineOptions options;
          options.device = testing::guarded_device();
          options.attention = AttentionKernel::reference;
          options.precision = Precision::bf16;
          options.bf16_matmul = Bf16Matmul::native;
          options.ulysses = ranks;
          options.zero = static_cast<ZeroStage>(stage);
          options.update_in_backward = in_backward;
          options.optimizer.max_grad_norm = in_backward ? 0 : 1;
          if (stage == 3) options.offload.parameters = place;
          options.offload.optimizer = options.offload.activations = place;
          if (place == Offload::disk) options.offload.folder = disk.path();
          run_ranks_as_threads(ranks, [&](World& world) {
            const auto engine = assemble(world, model.path(), options);
            const int64_t smallest_share = engine->layout().units[1].elements / ranks;
            StepBatches batches;
            for (uint64_t micro_batch = 0; micro_batch < (in_backward ? 1 : 2); ++micro_batch)
              batches.push_back(
                  testing::slice_of_batch(1, kTokens, kVocabulary, micro_batch, ranks, world.rank()));
            const int64_t before = testing::blocking_copy_bytes();
            for (int step = 0; step < 2; ++step) engine->train_step(batches, 1e-3);
            // Tokens, targets and positions, 8 bytes each.
            EXPECT_LT(testing::blocking_copy_bytes() - before, smallest_share);
          });
        }
}

}  // namespace
}  // namespace trireme::walk_waits_test
