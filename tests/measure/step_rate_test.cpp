// What a measurement reports holds together: times, counts, and losses that do not depend on the ranks.
#include "trireme/measure/step_rate.h"

#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/comm/thread_world.h"
#include "trireme/engine/assemble.h"
#include "trireme/measure/matmul_rate.h"

#include "tests/engine/tiny_model.h"

namespace trireme {
namespace {

StepRate measure_tiny(const std::filesystem::path& model, int ranks, const StepRateOptions& options,
                      int ring = 1) {
  StepRate result;
  run_ranks_as_threads(ranks, [&](World& world) {
    EngineOptions engine;
    engine.ulysses = ranks / ring;
    engine.ring = ring;
    const StepRate rate = measure_step_rate(*assemble(world, model, engine), options);
    if (world.rank() == 0) result = rate;
  });
  return result;
}

TEST(StepRate, counts_and_losses_hold_for_one_rank_and_for_two_by_ulysses_or_ring) {
  testing::TemporaryFolder folder;
  testing::write_tiny_model(folder.path(), testing::tiny_llama_config(), 0.05);
  const StepRateOptions options{.sequence_tokens = 65,
                                .batch = 2,
                                .steps = 4,
                                .warmup = 1,
                                .learning_rate = 1e-2,
                                .matmul_seconds = 0.01};
  const StepRate one = measure_tiny(folder.path(), 1, options);
  const StepRate two = measure_tiny(folder.path(), 2, options);
  const StepRate ring = measure_tiny(folder.path(), 2, options, 2);
  for (const StepRate* rate : {&one, &two, &ring}) {
    ASSERT_EQ(rate->step_seconds.size(), 4u);
    ASSERT_EQ(rate->losses.size(), 4u);
    EXPECT_LT(rate->losses[3], rate->losses[0]) << "the engine did not train";
    EXPECT_DOUBLE_EQ(rate->tokens_per_second * rate->median_step_seconds, 2.0 * 65);
    // 6 N S + 6 L H D S^2 for each of the 2 samples; layers of 32 x (32 + 2 x 16 + 32 + 3 x 48), head of 32 x
    // 70
    const double matmul_parameters = 2 * 32.0 * (32 + 2 * 16 + 32 + 3 * 48) + 32 * 70;
    EXPECT_DOUBLE_EQ(rate->model_flops_per_step, 2 * (6 * matmul_parameters * 65 + 6.0 * 2 * 32 * 65 * 65));
    EXPECT_GT(rate->matmul_share(), 0);
    EXPECT_LT(rate->matmul_share(), 1);
  }
  EXPECT_EQ(one.sent_bytes, 0);
  EXPECT_GT(two.sent_bytes, 0);
  EXPECT_GT(ring.sent_bytes, 0);
  EXPECT_EQ(one.peak_memory_bytes.size(), 1u);
  EXPECT_EQ(two.peak_memory_bytes.size(), 2u);
  for (size_t step = 0; step < one.losses.size(); ++step) {
    EXPECT_NEAR(one.losses[step], two.losses[step], 1e-4 * one.losses[step]) << "step " << step;
    EXPECT_NEAR(one.losses[step], ring.losses[step], 1e-4 * one.losses[step]) << "step " << step;
  }
}

TEST(StepRate, medians_leave_the_warm_up_out) {
  testing::TemporaryFolder folder;
  testing::write_tiny_model(folder.path(), testing::tiny_llama_config());
  const StepRate rate = measure_tiny(
      folder.path(), 1, {.sequence_tokens = 16, .batch = 1, .steps = 4, .warmup = 3, .matmul_seconds = 0.01});
  EXPECT_DOUBLE_EQ(rate.median_step_seconds, rate.step_seconds[3]);
  EXPECT_THROW(measure_tiny(folder.path(), 1, {.sequence_tokens = 16, .batch = 1, .steps = 2, .warmup = 2}),
               ConfigError);
}

TEST(MatmulRate, is_the_best_of_its_shapes) {
  const auto rates = measure_matmul_rates(at::kCPU, at::kFloat, 0.02);
  ASSERT_FALSE(rates.empty());
  for (const MatmulRate& rate : rates) EXPECT_GT(rate.flops_per_second, 1e8);
  EXPECT_GT(best_matmul_rate(at::kCPU, at::kFloat, 0.02), 1e9);
}

}  // namespace
}  // namespace trireme
