// A model whose last layers take keys of earlier ones, and whose layers are told of their tokens (Gemma 4 E2B).
// Against sums made by hand.

#include <gtest/gtest.h>

#include "trireme/base/sum_of.h"
#include "trireme/forecast/gather_order.h"
#include "trireme/forecast/layer_kinds.h"
#include "trireme/forecast/memory_timeline.h"
#include "trireme/forecast/sequence_ranks.h"
#include "trireme/forecast/store_bytes.h"
#include "trireme/forecast/tile_bytes.h"
#include "trireme/forecast/tile_rules.h"

namespace trireme::key_sharing_test {
namespace {

using enum MemoryCategory;

constexpr int64_t kTokens = 4000, kTile = 250, m = 256, i = 704, p = 40, q = 8 * 32, kv = 2 * 4 * 32;

// Layers 3 and 5 take keys of layer 1, layer 4 those of layer 2; all are alike otherwise.
ForecastInputs sharing() {
  ForecastInputs inputs;
  inputs.model = {.layers = 6,
                  .hidden = m,
                  .intermediate = i,
                  .mlp_kept_width = 2 * i + 2 * m,
                  .heads = 8,
                  .kv_heads = 4,
                  .head_dim = 32,
                  .layers_of_keys = {0, 1, 2, 1, 2, 1},
                  .sharing_intermediate = 2 * i,
                  .sharing_mlp_kept_width = 4 * i + 2 * m,
                  .layer_input_width = p,
                  .vocab = 1000,
                  .qk_norm = true,
                  .v_norm = true,
                  .post_norms = true,
                  .rotary_tables = 1,
                  .unit_elements = {5120, 8960, 64, 64, 64, 128, 128, 192, 64},
                  .tied = true};
  inputs.tokens = kTokens;
  inputs.tile_tokens = inputs.logits_tile_tokens = kTile;
  inputs.recompute = {Recompute::none, 1, 1, 6};
  return with_sequence_ranks(inputs, 1, 1, 0);
}

TEST(LayerKinds, of_a_model_that_shares_keys_are_those_with_keys_and_those_without) {
  const LayerKinds kinds = layer_kinds(sharing());
  EXPECT_EQ(kinds.of_layer, (std::vector<size_t>{0, 0, 0, 1, 1, 1}));
  ASSERT_EQ(kinds.inputs.size(), 2);
  EXPECT_EQ(kinds.layers_of(LayerKind::common), 6);
  const ModelSizes &with = kinds.inputs[0].model, &without = kinds.inputs[1].model;
  EXPECT_EQ(with.common_heads(), (AttentionHeads{8, 4, 32}));
  EXPECT_EQ(without.common_heads(),
            (AttentionHeads{.query = 8, .key_value = 4, .width = 32, .share_keys = true}));
  EXPECT_EQ(without.common_heads().projected_width(), q);
  EXPECT_EQ(without.intermediate, 2 * i);
  EXPECT_EQ(without.mlp_kept_width, 4 * i + 2 * m);
  EXPECT_EQ(without.unit_elements, (std::vector<int64_t>{5120, 8960, 128, 128, 192, 64}));
}

TEST(KeySharing, keeps_keys_and_inputs_until_their_gradients) {
  constexpr int64_t kInputs = 6 * kTokens * p * 4, kKeys = kTokens * kv * 4, kX = kTokens * m * 4;
  constexpr int64_t kKept = 4 * kTokens * (m + q + 8 + q + kv + m + 2 * i + 2 * m),
                    kWide = kKept + 4 * kTokens * 2 * i;
  const auto activations_at = [&](const std::string& name) {
    for (const MemorySnapshot& snapshot : memory_timeline(sharing()))
      if (snapshot.name() == name) return snapshot.bytes[activations];
    ADD_FAILURE() << name;
    return int64_t{0};
  };
  EXPECT_EQ(activations_at("layers' inputs: tiles"), kX + kInputs);
  EXPECT_EQ(activations_at("forward of layer 0: projection"), kX + kInputs);
  EXPECT_EQ(activations_at("forward of layer 2: projection"), kX + kInputs + 2 * kKept + kKeys);
  EXPECT_EQ(activations_at("head: tiles"), kX + kInputs + 3 * kKept + 3 * kWide + 2 * kKeys);
  // When layer 5 is done, d(k, v) of layer 1 are there, and of layer 2 when layer 4 is.
  EXPECT_EQ(activations_at("backward of layer 4: tiles after attention"),
            kX + kInputs + 3 * kKept + 2 * kWide + 3 * kKeys);
  EXPECT_EQ(activations_at("backward of layer 2: tiles after attention"),
            kX + kInputs + 3 * kKept + 4 * kKeys);
  EXPECT_EQ(activations_at("backward of layer 1: tiles after attention"),
            kX + kInputs + 2 * kKept + 2 * kKeys);
  EXPECT_EQ(activations_at("backward of layer 0: tiles after attention"), kX + kInputs + kKept);
  EXPECT_EQ(activations_at("gradient of layers' inputs: tiles"), 2 * kX + kInputs) << "and x, as dx runs";
  EXPECT_EQ(activations_at("gradient of the embedding: sums of the step"), kX);
}

TEST(KeySharing, gathers_the_table_before_the_first_layer_and_behind_the_last) {
  const RecomputePlan plan{Recompute::none, 1, 1, 2};
  EXPECT_EQ(forward_order(2, {.tied = true, .layer_inputs = true}), (std::vector<int>{0, 1, 2, 3, 4, 0}));
  EXPECT_EQ(training_order(plan, {.tied = true, .layer_inputs = true}),
            (std::vector<int>{0, 1, 2, 3, 4, 0, 3, 2, 1}));
  EXPECT_EQ(training_order(plan, {.tied = true, .layer_inputs = true, .trained = false}),
            (std::vector<int>{0, 1, 2, 3, 4, 0, 3, 2}));
}

// The tied matrix is open with every unit, the table with it alone.
TEST(KeySharing, holds_the_tables_gradient_beside_the_embeddings_alone) {
  ForecastInputs inputs = sharing();
  inputs.ranks = 2;
  inputs.zero = 3;
  const int64_t shares = sum_of(rank_shares(inputs));
  EXPECT_EQ(gradient_bytes(inputs), 4 * (shares + 8960 + 5120));
  // The embedding, and the table on its way; then the table and the first layer.
  EXPECT_EQ(parameter_bytes(inputs), 4 * (shares + 5120 + 8960));
}

TEST(TileRules, are_of_the_widest_mlp) {
  ModelSizes model = sharing().model;
  model.intermediate = 8192;
  model.sharing_intermediate = 2 * 8192;
  EXPECT_EQ(tile_tokens_by_rule(model, /*on_gpu=*/false), tile_tokens_by_rule(2 * 8192, /*on_gpu=*/false));
}

TEST(TileBytes, of_layers_that_share_keys_hold_queries_alone) {
  const LayerKinds kinds = layer_kinds(sharing());
  const TileBytes with = tile_bytes(kinds.inputs[0]), without = tile_bytes(kinds.inputs[1]);
  // normed; what is normed of q, k and v; v, d(v) and d of v before its norm, or d(normed).
  EXPECT_EQ(with.before_attention_backward, 4 * kTile * (m + q + kv + 3 * kv / 2));
  EXPECT_EQ(without.before_attention_backward, 4 * kTile * (2 * m + q));
  EXPECT_EQ(with.before_attention_forward, 4 * kTile * (m + kv)) << "v, and normed";
  EXPECT_EQ(without.before_attention_forward, 4 * kTile * m);
}

TEST(TileBytes, of_layers_that_are_told_of_their_tokens_hold_what_the_input_is_added_to) {
  ForecastInputs inputs = sharing();
  inputs.model.layer_input_width = 4000;
  const int64_t P = 4000;
  const TileBytes bytes = tile_bytes(layer_kinds(inputs).inputs[0]);
  EXPECT_EQ(bytes.after_attention_forward, 4 * kTile * 3 * P) << "gate and input, their product";
  // x1, a; gate|up, b and y; gate and input, d(product), the product, d(norm)
  EXPECT_EQ(bytes.after_attention_backward, 4 * kTile * (2 * m + 2 * i + m + m + 2 * P + m + 2 * P + m));
  // Rows of the projection and of the table; their gradients, with what was projected
  EXPECT_EQ(bytes.layer_inputs_forward, 4 * kTile * 6 * P * 2);
  EXPECT_EQ(bytes.layer_inputs_backward, 4 * kTile * (6 * P * 3 + m));
}

}  // namespace
}  // namespace trireme::key_sharing_test
