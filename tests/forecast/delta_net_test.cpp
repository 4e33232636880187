// A model of which some layers have a DeltaNet in place of attention (Qwen3.5). Against sums made by hand.
#include <gtest/gtest.h>

#include "trireme/forecast/layer_buffers.h"
#include "trireme/forecast/layer_kinds.h"
#include "trireme/forecast/memory_timeline.h"
#include "trireme/forecast/recompute_cost.h"
#include "trireme/forecast/sequence_ranks.h"

namespace trireme::delta_net_test {
namespace {

constexpr int64_t kTokens = 4000, kHidden = 256, kMlp = 1408;
constexpr DeltaNet kNet{{.key = 2, .value = 4, .key_width = 32, .value_width = 48}, 4};
constexpr int64_t kColumns = 2 * 64 + 192 + 8, kOutput = 192;

// Layers 2 and 4 have attention.
ForecastInputs inputs_of(RecomputePlan plan, int ulysses = 1) {
  ForecastInputs inputs;
  inputs.model = {.layers = 5,
                  .hidden = kHidden,
                  .intermediate = kMlp / 2,
                  .mlp_kept_width = kMlp,
                  .heads = 8,
                  .kv_heads = 4,
                  .head_dim = 32,
                  .gated_attention = true,
                  .turning_width = 8,
                  .delta_net = kNet,
                  .delta_layers = {true, true, false, true, false},
                  .vocab = 1000,
                  .qk_norm = true,
                  .layer_windows = {0, 0, 0, 0, 0},
                  .unit_elements = {1 << 18, 100, 101, 202, 103, 204, 1 << 18}};
  inputs.ranks = 4;
  inputs.tokens = kTokens;
  inputs.tile_tokens = inputs.logits_tile_tokens = 256;
  inputs.recompute = plan;
  return with_sequence_ranks(inputs, ulysses, 1, 0);
}

TEST(DeltaNetLayers, are_a_kind_beside_those_with_attention) {
  const LayerKinds kinds = layer_kinds(inputs_of({Recompute::none, 1, 1, 5}));
  EXPECT_EQ(kinds.kinds, (std::vector<LayerKind>{LayerKind::common, LayerKind::delta_net}));
  EXPECT_EQ(kinds.of_layer, (std::vector<size_t>{1, 1, 0, 1, 0}));
  EXPECT_FALSE(kinds.inputs[0].model.delta_net);
  EXPECT_EQ(kinds.inputs[1].model.delta_net, kNet);
  EXPECT_EQ(kinds.inputs[0].model.unit_elements, (std::vector<int64_t>{1 << 18, 202, 204, 1 << 18}));
  EXPECT_EQ(kinds.inputs[1].model.unit_elements, (std::vector<int64_t>{1 << 18, 100, 101, 103, 1 << 18}));
  EXPECT_EQ(kinds.inputs[1].model.layers, 3);
  EXPECT_DOUBLE_EQ(kinds.share(1), 0.6);
}

TEST(DeltaNetLayers, keep_columns_and_gates_and_no_log_sum_exp) {
  // x, o, columns with gate, x1, the MLP's; of attention x, o, the log-sum-exp, q with k and v, the gate, x1,
  // the MLP's
  constexpr int64_t kDelta = 4 * kTokens * (kHidden + kOutput + kColumns + kOutput + kHidden + kMlp),
                    kAttention = 4 * kTokens * (kHidden + 256 + 8 + 16 * 32 + 256 + kHidden + kMlp);
  EXPECT_EQ(kept_bytes_of_layers(inputs_of({Recompute::none, 1, 1, 5})),
            (std::vector<int64_t>{kDelta, kDelta, kAttention, kDelta, kAttention}));
}

// A layer that runs forward again has o, and takes its gate from what the first forward kept.
TEST(DeltaNetLayers, keep_the_gate_with_o_where_they_run_again) {
  const auto kept = kept_bytes_of_layers(inputs_of({Recompute::keep_attention, 2, 1, 5}));
  constexpr int64_t kRow = 4 * kTokens;
  EXPECT_EQ(kept, (std::vector<int64_t>{kRow * (kHidden + 2 * kOutput), kRow * kOutput,
                                        kRow * (kHidden + 2 * 256 + 8), kRow * kOutput,
                                        kRow * (kHidden + 256 + 8)}));
}

TEST(DeltaNetLayers, share_their_columns_over_all_ranks_of_a_sample) {
  for (const auto& [ulysses, ring] : {std::pair{2, 1}, {1, 2}}) {
    ForecastInputs inputs = inputs_of({Recompute::none, 1, 1, 5});
    inputs = with_sequence_ranks(inputs, ulysses, ring, 1);
    // Half of the columns of all tokens: as many as all columns of half of the tokens.
    EXPECT_EQ(kept_bytes_of_layers(inputs)[0],
              4 * kTokens / 2 * (kHidden + kOutput + kColumns + kOutput + kHidden + kMlp));
  }
}

TEST(DeltaNetLayers, cost_their_products_at_the_mean_of_the_layers) {
  const ForecastInputs inputs = inputs_of({Recompute::none, 1, 1, 5});
  EXPECT_DOUBLE_EQ(cost_of(KeptPart::qkv, inputs).bytes,
                   4 * (3.0 * (kColumns + kOutput) + 2 * (512 + 256)) / 5);
  EXPECT_DOUBLE_EQ(cost_of(KeptPart::attention, inputs).bytes, 4 * (3.0 * kOutput + 2 * (256 + 8)) / 5);
}

// Tables of cosines and sines are as wide as what turns.
TEST(DeltaNetLayers, have_rotary_tables_of_the_values_that_turn) {
  const auto snapshots = memory_timeline(inputs_of({Recompute::none, 1, 1, 5}));
  EXPECT_EQ(snapshots[0].bytes[MemoryCategory::other], 5 * kTokens * 4 * 4);
}

}  // namespace
}  // namespace trireme::delta_net_test
