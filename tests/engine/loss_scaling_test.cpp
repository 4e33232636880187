// fp16 training: a step whose gradients overflow changes nothing but the loss scale, on every rank alike, and
// training goes on at a scale that fits.

#include <gtest/gtest.h>

#include "trireme/comm/thread_world.h"
#include "trireme/engine/assemble.h"

#include "tests/engine/tiny_model.h"

namespace trireme {
namespace {

using testing::TemporaryFolder;

EngineOptions fp16_options(int ranks, ZeroStage zero, double scale) {
  EngineOptions options;
  options.precision = Precision::fp16;
  options.ulysses = ranks;
  options.zero = zero;
  options.loss_scale = {.initial = scale, .growth_steps = 3};
  options.optimizer.kind = &find_optimizer("sgd");
  return options;
}

std::vector<at::Tensor> all_values(Engine& engine) {
  std::vector<at::Tensor> values;
  values.reserve(engine.layout().units.size());
  for (int unit = 0; unit < static_cast<int>(engine.layout().units.size()); ++unit)
    values.push_back(engine.unit_values(unit).clone());
  return values;
}

bool equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const at::Tensor& x, const at::Tensor& y) { return at::equal(x, y); });
}

TEST(LossScaling, steps_that_overflow_change_nothing_and_the_first_that_fits_is_as_if_they_had_not_been) {
  TemporaryFolder folder;
  testing::write_tiny_model(folder.path(), testing::tiny_llama_config());
  for (const auto& [ranks, zero] :
       {std::pair{1, ZeroStage::none}, {2, ZeroStage::none}, {2, ZeroStage::gradients}}) {
    std::vector<double> scales(static_cast<size_t>(ranks));
    run_ranks_as_threads(ranks, [&, ranks = ranks, zero = zero](World& world) {
      const auto batch = [&](uint64_t seed) {
        return StepBatches{testing::slice_of_batch(2, 40, 70, seed, ranks, world.rank())};
      };
      const auto engine = assemble(world, folder.path(), fp16_options(ranks, zero, 0x1p40));
      const auto before = all_values(*engine);
      double scale = 0x1p40;
      int skipped = 0;
      StepResult step = engine->train_step(batch(1), 0.1);
      for (; step.skipped && skipped < 40; step = engine->train_step(batch(1), 0.1)) {
        ++skipped;
        EXPECT_EQ(step.loss_scale, scale);
        EXPECT_TRUE(std::isfinite(step.loss));
        EXPECT_EQ(engine->progress().optimizer_steps, 0);
        EXPECT_EQ(engine->progress().loss_scale, scale / 2);
        EXPECT_TRUE(equal(all_values(*engine), before));
        scale /= 2;
      }
      EXPECT_GT(skipped, 0);
      EXPECT_LT(skipped, 40);
      EXPECT_EQ(step.loss_scale, scale);
      EXPECT_EQ(engine->progress().optimizer_steps, 1);
      EXPECT_FALSE(equal(all_values(*engine), before));
      scales.at(static_cast<size_t>(world.rank())) = scale;

      const auto fresh = assemble(world, folder.path(), fp16_options(ranks, zero, scale));
      EXPECT_FALSE(fresh->train_step(batch(1), 0.1).skipped);
      EXPECT_TRUE(equal(all_values(*fresh), all_values(*engine)));
    });
    for (const double scale : scales) EXPECT_EQ(scale, scales.front());
  }
}

// Each beside fp32 and not beside the other: a norm that still holds the scale would shrink both.
TEST(LossScaling, clips_by_the_norm_of_the_gradients_without_their_scale) {
  TemporaryFolder folder;
  testing::write_tiny_model(folder.path(), testing::tiny_llama_config());
  constexpr double kLimit = 0.05;
  struct Moved {
    std::vector<double> norms;
    at::Tensor change;  // of all weights together
  };
  run_ranks_as_threads(1, [&](World& world) {
    const auto train = [&](EngineOptions options) {
      options.optimizer.max_grad_norm = kLimit;
      const auto engine = assemble(world, folder.path(), options);
      const at::Tensor before = at::cat(all_values(*engine));
      Moved moved;
      for (uint64_t step = 0; step < 3; ++step)
        moved.norms.push_back(
            engine->train_step({testing::slice_of_batch(2, 40, 70, step, 1, 0)}, 1.0).gradient_norm);
      moved.change = at::cat(all_values(*engine)) - before;
      return moved;
    };
    EngineOptions fp32 = fp16_options(1, ZeroStage::none, 1);
    fp32.precision = Precision::fp32;
    const Moved expected = train(fp32);
    for (const double norm : expected.norms) EXPECT_GT(norm, 2 * kLimit) << "nothing is clipped";
    for (const double scale : {256.0, 4096.0}) {
      const Moved moved = train(fp16_options(1, ZeroStage::none, scale));
      for (size_t step = 0; step < moved.norms.size(); ++step)
        EXPECT_NEAR(moved.norms[step] / expected.norms[step], 1, 1e-2) << "scale " << scale;
      EXPECT_LT((moved.change - expected.change).norm().item<double>(),
                2e-2 * expected.change.norm().item<double>())
          << "scale " << scale;
    }
  });
}

TEST(LossScaling, a_resumed_run_has_the_scale_of_the_one_that_stopped) {
  TemporaryFolder folder;
  testing::write_tiny_model(folder.path(), testing::tiny_llama_config());
  run_ranks_as_threads(1, [&](World& world) {
    const auto batch = [](uint64_t seed) {
      return StepBatches{testing::slice_of_batch(2, 40, 70, seed, 1, 0)};
    };
    const auto whole = assemble(world, folder.path(), fp16_options(1, ZeroStage::none, 256));
    const auto resumed = assemble(world, folder.path(), fp16_options(1, ZeroStage::none, 65536));
    for (uint64_t step = 0; step < 4; ++step) whole->train_step(batch(step), 0.1);
    EXPECT_EQ(whole->progress().loss_scale, 512);
    EXPECT_EQ(whole->progress().clean_steps, 1);
    for (int unit = 0; unit < static_cast<int>(whole->layout().units.size()); ++unit)
      testing::restore_unit(*resumed, unit, "master", whole->unit_values(unit).clone());
    resumed->restore_progress(whole->progress());
    for (uint64_t step = 4; step < 8; ++step)
      EXPECT_EQ(whole->train_step(batch(step), 0.1).loss_scale,
                resumed->train_step(batch(step), 0.1).loss_scale);
    EXPECT_TRUE(equal(all_values(*resumed), all_values(*whole)));
    EXPECT_EQ(whole->progress().loss_scale, 1024);
  });
}

}  // namespace
}  // namespace trireme
