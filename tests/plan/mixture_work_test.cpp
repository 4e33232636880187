// The counts of a step of a mixture of experts, held against the formulas of the field.
#include <gtest/gtest.h>

#include "trireme/plan/step_work.h"

#include "tests/plan/planned_step.h"
#include "tests/plan/work_amounts.h"

namespace trireme::testing {
namespace {

TEST(MixtureWork, of_a_mixture_each_token_multiplies_its_experts_and_the_router) {
  constexpr double kRouter = 256.0 * 8;
  PlannedStep step = mixture_step(2048, Recompute::none);
  step.inputs.logits_tile_tokens = 32;
  EXPECT_EQ(matmul_parameters(step.inputs.model), kSmallParameters + 4 * kRouter);
  const double kept = products_of(step);
  EXPECT_DOUBLE_EQ(kept, 6 * (kSmallParameters + 4 * kRouter) * 2048);
  double of_experts = 0;
  for (const WorkItem& item : step_work(step).items)
    of_experts += item.kind == WorkKind::matmul && item.width == 64 ? item.amount : 0;
  EXPECT_DOUBLE_EQ(of_experts, 4 * 4 * 256.0 * 768 * 3 * 2048) << "each has a quarter of a tile's tokens";
  step.inputs.recompute = plan_keeping({4, 4, 0}, 1, 4);
  EXPECT_DOUBLE_EQ(products_of(step), kept + 2 * 2048 * 4 * (256.0 * 256 + 2 * 256.0 * 768 + kRouter));
}

TEST(MixtureWork, of_a_shared_expert_each_token_multiplies_three_matrices_and_a_row) {
  constexpr double kShared = 512, kRow = 256, kOfLayer = 3 * 256 * kShared + kRow, kRouter = 256.0 * 8;
  PlannedStep step = mixture_step(2048, Recompute::none);
  const PlannedStep without = step;
  step.inputs.model.shared_intermediate = static_cast<int64_t>(kShared);
  EXPECT_EQ(matmul_parameters(step.inputs.model), kSmallParameters + 4 * (kRouter + kOfLayer));
  // The share is made again whatever is kept.
  const double kept = products_of(step);
  EXPECT_DOUBLE_EQ(kept, products_of(without) + 4 * (6 * kOfLayer + 2 * kRow) * 2048);
  EXPECT_EQ(amount_of(step, WorkKind::copy) - amount_of(without, WorkKind::copy),
            4 * (3 * kShared + 2 * kShared + 2 * 256) * 2048)
      << "act and its gradient by the share, act by its gradient, d(normed)";
  step.inputs.recompute = plan_keeping({4, 4, 0}, 1, 4);
  EXPECT_DOUBLE_EQ(products_of(step),
                   kept + 2 * 2048 * 4 * (256.0 * 256 + 2 * 256.0 * 768 + kRouter + 2 * 256 * kShared));
}

TEST(MixtureWork, of_lora_beside_a_shared_expert_is_that_of_its_modules) {
  constexpr double kRank = 8, kShared = 512;
  constexpr double kOfLayer =
      kRank * (3 * 256 + 512 + 256 + 256 + 2 * 256 + 2 * kShared + kShared + 256 + 256 + 1);
  PlannedStep step = mixture_step(2048, Recompute::none);
  step.inputs.model.shared_intermediate = static_cast<int64_t>(kShared);
  const double model = amount_of(step, WorkKind::matmul);
  testing::adapt_layers(step.inputs.model, static_cast<int64_t>(kRank), static_cast<int64_t>(kOfLayer));
  // Forward once, of the share twice, and backward three times as much.
  EXPECT_DOUBLE_EQ(amount_of(step, WorkKind::matmul), model + 4 * 2 * (4 * kOfLayer + kRank * 257) * 2048);
}

// As Gemma 4's: norms of x1 before experts and router, of what they and the MLP give, and of their sum.
TEST(MixtureWork, of_experts_beside_an_mlp_has_their_norms_and_no_share) {
  constexpr double kMlp = 3 * 256 * 512.0;
  PlannedStep step = mixture_step(2048, Recompute::none);
  step.inputs.model.post_norms = true;
  const PlannedStep without = step;
  step.inputs.model.experts_beside_mlp = true;
  step.inputs.model.shared_intermediate = 512;
  EXPECT_DOUBLE_EQ(products_of(step), products_of(without) + 4 * 6 * kMlp * 2048);
  EXPECT_EQ(amount_of(step, WorkKind::norm) - amount_of(without, WorkKind::norm), 4 * 2 * 4 * 256 * 2048);
  EXPECT_EQ(amount_of(step, WorkKind::norm_backward) - amount_of(without, WorkKind::norm_backward),
            4 * 4 * 256 * 2048);
  // What is not kept is made again, down too: a norm's backward reads what it gave.
  const double kept = products_of(step), kept_without = products_of(without);
  PlannedStep again = step, again_without = without;
  again.inputs.recompute = again_without.inputs.recompute = plan_keeping({4, 4, 0}, 1, 4);
  EXPECT_DOUBLE_EQ(products_of(again) - kept,
                   products_of(again_without) - kept_without + 4 * 2 * kMlp * 2048);
}

}  // namespace
}  // namespace trireme::testing
