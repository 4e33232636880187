// What is kept first, and how far a plan goes: counted slot by slot. No libtorch.
#include "trireme/forecast/keep_order.h"

#include <gtest/gtest.h>

#include "trireme/forecast/choose_recompute.h"

namespace trireme::keep_order_test {
namespace {

using enum KeptPart;
using Parts = std::vector<KeptPart>;

ForecastInputs inputs_of(int64_t tokens, int64_t layers = 32) {
  ForecastInputs inputs;
  inputs.model = {.layers = layers,
                  .hidden = 4096,
                  .intermediate = 14336,
                  .mlp_kept_width = 2 * 14336,
                  .heads = 32,
                  .kv_heads = 8,
                  .head_dim = 128,
                  .vocab = 128256,
                  .unit_elements = std::vector<int64_t>(static_cast<size_t>(layers) + 2, 1 << 20)};
  inputs.storage_bytes = inputs.tile_bytes = 2;
  inputs.device_is_host = false;
  return with_batch(inputs, 1, tokens);
}

KeptLayers counted(const RecomputePlan& plan) {
  KeptLayers kept;
  for (int64_t layer = 0; layer < plan.layers; ++layer) {
    const SavedSlots slots = plan.kept_by_forward(layer);
    EXPECT_TRUE(slots[kX]);
    EXPECT_EQ(slots[kO], slots[kLse]);
    EXPECT_EQ(slots[kX1], slots[kGateUp]);
    EXPECT_EQ(slots[kOHeads], slots[kO] && slots[kQkv]);
    kept.attention += slots[kO] ? 1 : 0;
    kept.qkv += slots[kQkv] ? 1 : 0;
    kept.mlp += slots[kGateUp] ? 1 : 0;
    // The last layers keep it.
    for (const auto& [slot, count] : {std::pair(kO, kept.attention), {kQkv, kept.qkv}, {kGateUp, kept.mlp}})
      EXPECT_EQ(slots[slot], count > 0);
  }
  return kept;
}

TEST(RecomputePlan, keeps_exactly_so_many_of_the_last_layers_of_each_part) {
  for (const int64_t layers : {1, 2, 7, 32, 126})
    for (int64_t attention = 0; attention <= layers; attention += attention < 3 ? 1 : 17)
      for (int64_t qkv = 0; qkv <= layers; qkv += qkv < 3 ? 1 : 17)
        for (int64_t mlp = 0; mlp <= layers; mlp += mlp < 3 ? 1 : 17) {
          const KeptLayers kept{attention, qkv, mlp};
          ASSERT_EQ(counted(plan_keeping(kept, 1, layers)), kept);
        }
}

TEST(RecomputePlan, is_told_by_the_plainest_policy) {
  EXPECT_EQ(plan_keeping({}, 1, 4).description(), "full");
  EXPECT_EQ(plan_keeping({4, 4, 4}, 1, 4).description(), "none");
  EXPECT_EQ(plan_keeping({2, 2, 2}, 1, 4).description(), "none on 2 of 4 layers");
  EXPECT_EQ(plan_keeping({4, 0, 0}, 2, 4).description(), "keep_attention, inputs of every 2 layers");
  EXPECT_EQ(plan_keeping({1, 0, 0}, 1, 4).description(), "keep_attention on 1 of 4 layers");
  EXPECT_EQ(plan_keeping({4, 4, 3}, 1, 4).description(),
            "keep_attention on 4, qkv on 4, mlp on 3 of 4 layers");
  EXPECT_EQ(plan_keeping({0, 0, 3}, 1, 4).description(),
            "keep_attention on 0, qkv on 0, mlp on 3 of 4 layers");
}

TEST(KeepOrder, attention_comes_first_in_long_sequences_and_last_in_short_ones) {
  for (const int64_t tokens : {8192, 32768, 1 << 20})
    EXPECT_EQ(KeepOrder(inputs_of(tokens)).parts(), (Parts{attention, qkv, mlp})) << tokens;
  for (const int64_t tokens : {512, 2048})
    EXPECT_EQ(KeepOrder(inputs_of(tokens)).parts(), (Parts{qkv, mlp, attention})) << tokens;
}

// Values of 2 bytes are kept before those of 4 that save as many products.
TEST(KeepOrder, windows_and_documents_make_attention_cost_what_a_query_sees) {
  ForecastInputs windows = inputs_of(1 << 17), documents = windows;
  windows.model.layer_windows.assign(32, 1024);
  documents.document_tokens = 1024;
  for (const ForecastInputs& inputs : {windows, documents})
    EXPECT_EQ(KeepOrder(inputs).parts(), (Parts{qkv, mlp, attention}));
  windows.model.layer_windows.front() = 0;  // one full layer of 32 is worth as many keys as 2,048 to each
  EXPECT_EQ(KeepOrder(windows).parts().back(), mlp);
  documents.document_tokens = 1 << 20;  // cut by the sample
  EXPECT_EQ(KeepOrder(documents).parts(), KeepOrder(inputs_of(1 << 17)).parts());
}

TEST(KeepOrder, counts_bytes_and_not_values) {
  ForecastInputs inputs = inputs_of(2048);
  inputs.tile_bytes = 4;
  EXPECT_EQ(KeepOrder(inputs).parts().back(), mlp);
}

TEST(KeepOrder, is_the_same_on_ranks_of_other_heads) {
  ForecastInputs a = inputs_of(4096), b = a;
  a.rank_heads = 7, b.rank_heads = 4;
  a.shard_tokens = 400, b.shard_tokens = 401;
  EXPECT_EQ(KeepOrder(a).parts(), KeepOrder(b).parts());
}

TEST(KeepOrder, is_attention_alone_in_groups_of_layers_and_where_it_is_offloaded) {
  ForecastInputs groups = inputs_of(512), offloads = groups;
  groups.recompute.checkpoint_every = 2;
  offloads.offload.activations = Offload::cpu;
  for (const ForecastInputs& inputs : {groups, offloads}) {
    EXPECT_EQ(KeepOrder(inputs).parts(), Parts{attention});
    EXPECT_EQ(KeepOrder(inputs).last_position(), 32);
  }
}

TEST(KeepOrder, each_position_keeps_one_layer_of_one_part_more) {
  for (const int64_t tokens : {512, 1 << 20})
    for (const int64_t layers : {1, 5, 32}) {
      const KeepOrder order(inputs_of(tokens, layers));
      ASSERT_EQ(order.last_position(), 3 * layers);
      EXPECT_EQ(order.at(0), KeptLayers{});
      for (int64_t position = 1; position <= order.last_position(); ++position) {
        KeptLayers before = order.at(position - 1);
        ++before[order.parts()[static_cast<size_t>((position - 1) / layers)]];
        EXPECT_EQ(order.at(position), before);
      }
      EXPECT_EQ(order.at(order.last_position()), (KeptLayers{layers, layers, layers}));
    }
}

}  // namespace
}  // namespace trireme::keep_order_test
