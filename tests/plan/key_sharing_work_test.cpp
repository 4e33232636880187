// The counts of a step's work where layers take keys of earlier ones and are told of their tokens (Gemma 4 E2B),
// against sums made by hand.
#include <gtest/gtest.h>

#include "trireme/forecast/recompute_cost.h"
#include "trireme/plan/step_work.h"

#include "tests/plan/small_request.h"
#include "tests/plan/work_amounts.h"

namespace trireme::key_sharing_work_test {
namespace {

using namespace testing;

constexpr double kTokens = 2048, m = 256, i = 768, q = 8 * 32, kv = 4 * 32, p = 40;

// The small model; the last two of its four layers take keys of the others.
PlannedStep sharing_step(Recompute recompute, bool wide = false) {
  PlannedStep step = small_step(static_cast<int64_t>(kTokens), recompute);
  ModelSizes& model = step.inputs.model;
  model.layers_of_keys = {0, 1, 0, 1};
  model.sharing_intermediate = model.intermediate * (wide ? 2 : 1);
  model.sharing_mlp_kept_width = model.mlp_kept_width * (wide ? 2 : 1);
  return step;
}

TEST(KeySharing, multiplies_by_queries_alone_and_turns_them_alone) {
  const PlannedStep whole = small_step(static_cast<int64_t>(kTokens), Recompute::none),
                    step = sharing_step(Recompute::none);
  EXPECT_EQ(matmul_parameters(step.inputs.model), matmul_parameters(whole.inputs.model) - 2 * m * 2 * kv);
  EXPECT_DOUBLE_EQ(products_of(whole) - products_of(step), 6 * kTokens * 2 * m * 2 * kv);
  EXPECT_DOUBLE_EQ(amount_of(step, WorkKind::rotation), 2 * kTokens * (2 * (q + kv) + 2 * q));
  for (const WorkKind kind : {WorkKind::attention_forward, WorkKind::attention_backward})
    EXPECT_DOUBLE_EQ(amount_of(step, kind), amount_of(whole, kind)) << "they attend as the others do";
  EXPECT_DOUBLE_EQ(step.model_flops(), whole.model_flops() - 6 * kTokens * 2 * m * 2 * kv);
  // k and v are copied where they are taken, and their gradients added up.
  EXPECT_DOUBLE_EQ(amount_of(step, WorkKind::copy),
                   amount_of(whole, WorkKind::copy) + 2 * kTokens * 2 * 2 * kv);
}

TEST(KeySharing, has_wide_mlps_where_the_model_says_so) {
  const PlannedStep wide = sharing_step(Recompute::none, /*wide=*/true), step = sharing_step(Recompute::none);
  EXPECT_DOUBLE_EQ(products_of(wide) - products_of(step), 6 * kTokens * 2 * 3 * m * i);
  for (const WorkKind kind : {WorkKind::activation, WorkKind::activation_backward})
    EXPECT_DOUBLE_EQ(amount_of(wide, kind), amount_of(step, kind) * 6 / 4) << "of two layers twice as much";
}

TEST(LayerInputs, are_made_once_and_multiplied_by_in_each_layer) {
  PlannedStep step = small_step(static_cast<int64_t>(kTokens), Recompute::none);
  const double products = products_of(step), parameters = matmul_parameters(step.inputs.model);
  step.inputs.model.layer_input_width = static_cast<int64_t>(p);
  constexpr double kProjection = 4 * p * m, kOfLayers = 4 * 2 * p * m;
  EXPECT_EQ(matmul_parameters(step.inputs.model), parameters + kProjection + kOfLayers);
  // Each product runs once more in backward: its norm's backward reads what it gave.
  EXPECT_DOUBLE_EQ(products_of(step), products + (6 + 2) * kTokens * (kProjection + kOfLayers));
}

TEST(LayerInputs, are_multiplied_by_once_more_in_a_second_forward_as_the_cost_of_recomputing_says) {
  const auto more = [](int64_t width, bool cost) {
    PlannedStep step = small_step(static_cast<int64_t>(kTokens), Recompute::keep_attention);
    step.inputs.model.layer_input_width = width;
    const auto products = [&] {
      return cost ? kTokens * product_flops_made_again(step.inputs.recompute, step.inputs)
                  : products_of(step);
    };
    const double every_layer = products();
    step.inputs.recompute.checkpoint_every = 2;
    return products() - every_layer;
  };
  // Two of the four layers.
  constexpr double kInputs = 2 * kTokens * 2 * 2 * m * p;
  for (const bool cost : {false, true})
    EXPECT_DOUBLE_EQ(more(static_cast<int64_t>(p), cost) - more(0, cost), kInputs) << cost;
}

TEST(LayerInputs, of_a_sharded_model_are_gathered_before_layers_and_behind_them) {
  PlannedStep step = small_step(static_cast<int64_t>(kTokens), Recompute::none, 2);
  step.inputs.zero = 3;
  step.inputs.model.unit_elements = {5000, 100, 100, 100, 100, 7000};
  const double bytes = sent_bytes(step, TrafficKind::gathered_parameters);
  step.inputs.model.layer_input_width = static_cast<int64_t>(p);
  step.inputs.model.unit_elements.insert(step.inputs.model.unit_elements.begin() + 1, 9000);
  EXPECT_DOUBLE_EQ(sent_bytes(step, TrafficKind::gathered_parameters), bytes + 2 * 9000 * 4 * 0.5);
}

}  // namespace
}  // namespace trireme::key_sharing_work_test
