// The counts of a step's work where layers have a DeltaNet in place of attention (Qwen3.5), against sums made
// by hand.
#include <gtest/gtest.h>

#include "trireme/kernels/delta_rule_bytes.h"
#include "trireme/plan/planned_inputs.h"
#include "trireme/plan/step_work.h"

#include "tests/plan/small_request.h"
#include "tests/plan/work_amounts.h"

namespace trireme::delta_net_work_test {
namespace {

using namespace testing;

constexpr double kTokens = 2048, kPairs = kTokens * kTokens / 2;
constexpr DeltaNet kNet{{.key = 2, .value = 4, .key_width = 32, .value_width = 48}, 4};
constexpr double kColumns = 2 * 64 + 192 + 8, kOutput = 192, kMlp = 3 * 256.0 * 768;

// The small model, 8 heads and 4 key/value heads 32 wide; the last of its four layers has attention.
PlannedStep delta_step(Recompute recompute, int ulysses = 1) {
  PlannedStep step = small_step(static_cast<int64_t>(kTokens), recompute, ulysses);
  ModelSizes& model = step.inputs.model;
  model.layer_windows.assign(4, 0);
  model.gated_attention = true;
  model.delta_net = kNet;
  model.delta_layers = {true, true, true, false};
  step.attention_pairs = {kPairs, 0};
  return step;
}

constexpr double kFilter = (2 * 64 + 192) * 4;
constexpr double kParameters = 3 * (kFilter + 256 * (kColumns + kOutput) + kOutput * 256 + kMlp) +
                               (256.0 * (512 + 256) + 256.0 * 256 + kMlp) + 256.0 * 1024;

TEST(DeltaNetWork, multiplies_by_the_matrices_of_each_kind_and_attends_in_one_layer) {
  const PlannedStep step = delta_step(Recompute::none);
  EXPECT_EQ(matmul_parameters(step.inputs.model), kParameters);
  EXPECT_DOUBLE_EQ(step.model_flops(),
                   (6 * kParameters + 3 * 18 * 4 * 32 * 48) * kTokens + 12 * 8 * 32 * kPairs);
  EXPECT_DOUBLE_EQ(amount_of(step, WorkKind::attention_forward), 4 * 32 * 8 * kPairs);
  const double rule = 3 * 4 * kTokens * delta_rule_forward_flops(32, 48);
  // Forward; in backward again for the states, within the segments, and twice for the gradients.
  EXPECT_DOUBLE_EQ(products_of(step), 6 * (kParameters - 3 * kFilter) * kTokens + 5 * rule);
}

TEST(DeltaNetWork, exchanges_columns_and_outputs) {
  const double value = kTokens / 2 * 4 * 0.5;  // of a layer's shard, in fp32, sent to the other rank
  // Of attention q, k and v, o; do, and dq, dk and dv.
  const PlannedStep step = delta_step(Recompute::none, 2);
  EXPECT_DOUBLE_EQ(sent_bytes(step, TrafficKind::ulysses), value * 2 * (16 * 32 + 8 * 32));
  EXPECT_DOUBLE_EQ(sent_bytes(step, TrafficKind::columns), value * 2 * 3 * (kColumns + kOutput));
}

// The last ranks have more value heads where they are not shared evenly.
TEST(FullestSequenceRank, of_a_model_with_delta_nets_has_most_of_their_columns) {
  ModelSizes model = small_model();
  model.delta_net = kNet;
  model.delta_layers = {true, true, true, false};
  Configuration configuration;
  configuration.ulysses = 3;
  EXPECT_EQ(fullest_sequence_rank(model, configuration), 2);
}

}  // namespace
}  // namespace trireme::delta_net_work_test
