// A model whose layers with full attention have heads of their own (Gemma 4). Against sums made by hand, and
// against a model of one kind where both kinds have the same heads.
#include <algorithm>

#include <gtest/gtest.h>

#include "trireme/forecast/attention_snapshots.h"
#include "trireme/forecast/device_kernels.h"
#include "trireme/forecast/layer_buffers.h"
#include "trireme/forecast/layer_kinds.h"
#include "trireme/forecast/memory_forecast.h"
#include "trireme/forecast/memory_timeline.h"
#include "trireme/forecast/recompute_cost.h"
#include "trireme/forecast/sequence_ranks.h"

namespace trireme::two_kinds_test {
namespace {

using enum MemoryCategory;

constexpr int64_t kTokens = 4000, kHidden = 256, kMlp = 1408;
constexpr AttentionHeads kFull{8, 2, 64, /*keys_are_values=*/true};

// Layers 2 and 4 have full attention.
ForecastInputs two_kinds() {
  ForecastInputs inputs;
  inputs.model = {.layers = 5,
                  .hidden = kHidden,
                  .intermediate = kMlp / 2,
                  .mlp_kept_width = kMlp,
                  .heads = 8,
                  .kv_heads = 4,
                  .head_dim = 32,
                  .full_heads = kFull,
                  .vocab = 1000,
                  .qk_norm = true,
                  .v_norm = true,
                  .rotary_tables = 2,
                  .layer_windows = {64, 128, 0, 64, 0},
                  .unit_elements = {1 << 18, 100, 101, 202, 103, 204, 1 << 18}};
  inputs.ranks = 4;
  inputs.tokens = kTokens;
  inputs.tile_tokens = inputs.logits_tile_tokens = 256;
  inputs.recompute = {Recompute::none, 1, 1, 5};
  return with_sequence_ranks(inputs, 1, 1, 0);
}

TEST(LayerKinds, of_equal_heads_are_the_inputs_as_they_are) {
  ForecastInputs inputs = two_kinds();
  inputs.model.full_heads.reset();
  const LayerKinds kinds = layer_kinds(inputs);
  ASSERT_EQ(kinds.inputs.size(), 1);
  EXPECT_EQ(kinds.inputs[0], inputs);
  EXPECT_EQ(kinds.of_layer, std::vector<size_t>(5, 0));
}

TEST(LayerKinds, are_models_of_the_layers_with_a_window_and_of_those_without) {
  const LayerKinds kinds = layer_kinds(with_sequence_ranks(two_kinds(), 4, 1, 3));
  EXPECT_EQ(kinds.of_layer, (std::vector<size_t>{0, 0, 1, 0, 1}));
  ASSERT_EQ(kinds.inputs.size(), 2);
  const ModelSizes &common = kinds.inputs[0].model, &full = kinds.inputs[1].model;
  EXPECT_EQ(common.common_heads(), (AttentionHeads{8, 4, 32}));
  EXPECT_EQ(full.common_heads(), kFull);
  EXPECT_FALSE(common.full_heads || full.full_heads);
  EXPECT_EQ(common.layers, 3);
  EXPECT_EQ(full.layers, 2);
  EXPECT_EQ(common.causal_tokens, 128);
  EXPECT_EQ(full.causal_tokens, ModelSizes{}.causal_tokens);
  EXPECT_EQ(common.unit_elements, (std::vector<int64_t>{1 << 18, 100, 101, 103, 1 << 18}));
  EXPECT_EQ(full.unit_elements, (std::vector<int64_t>{1 << 18, 202, 204, 1 << 18}));
  for (const ForecastInputs& kind : kinds.inputs) {
    EXPECT_EQ(kind.sp_rank, 3);
    EXPECT_EQ(kind.rank_heads, 2);
    EXPECT_EQ(kind.rank_kv_heads, 1);
    EXPECT_EQ(kind.packed_heads, 8 + 2 * 4);  // of full attention two ranks have the same key/value head
  }
}

TEST(LayerKinds, are_one_where_all_layers_are_alike) {
  ForecastInputs inputs = two_kinds();
  for (const int64_t window : {0, 64}) {
    inputs.model.layer_windows.assign(5, window);
    const LayerKinds kinds = layer_kinds(inputs);
    ASSERT_EQ(kinds.inputs.size(), 1);
    EXPECT_EQ(kinds.inputs[0].model.head_dim, window == 0 ? 64 : 32);
    EXPECT_EQ(kinds.inputs[0].model.layers, 5);
    EXPECT_EQ(kinds.of_layer, std::vector<size_t>(5, 0));
  }
}

TEST(TwoKinds, keep_what_each_layers_heads_are_wide) {
  // x, o, the log-sum-exp, q with k and v, x1, the MLP's
  constexpr int64_t kCommon = 4 * kTokens * (kHidden + 256 + 8 + (8 + 2 * 4) * 32 + kHidden + kMlp),
                    kOfFull = 4 * kTokens * (kHidden + 512 + 8 + (8 + 2 * 2) * 64 + kHidden + kMlp);
  EXPECT_EQ(kept_bytes_of_layers(two_kinds()),
            (std::vector<int64_t>{kCommon, kCommon, kOfFull, kCommon, kOfFull}));
}

TEST(TwoKinds, make_a_part_again_at_the_mean_of_the_layers) {
  const ForecastInputs inputs = two_kinds();
  EXPECT_DOUBLE_EQ(cost_of(KeptPart::qkv, inputs).bytes, 4 * (3 * 512 + 2 * 768) / 5.0);
  EXPECT_DOUBLE_EQ(cost_of(KeptPart::attention, inputs).bytes, 4 * (3 * 264 + 2 * 520) / 5.0);
  // What the products read, and what is rotated: 10 FLOPs a byte on a CPU.
  const double products = 2.0 * kHidden * (3 * 512 + 2 * (8 + 2) * 64) / 5;
  const double touched = kHidden * 8 + 2 * 4 * (3 * 512 + 2 * 768) / 5.0;
  EXPECT_DOUBLE_EQ(cost_of(KeptPart::qkv, inputs).product_flops, products + 10 * touched);
  // Keys of a query: of windows w - w^2 / 2n of n tokens, else half of them.
  const double windows = (64 + 128 + 64) - (2 * 64.0 * 64 + 128.0 * 128) / (2 * kTokens);
  EXPECT_DOUBLE_EQ(cost_of(KeptPart::attention, inputs).product_flops,
                   1.5 * 4 * (256 * windows + 2 * 512 * kTokens / 2.0) / 5);
}

TEST(TwoKinds, have_a_rotary_table_each_the_wider_made_first) {
  const auto snapshots = memory_timeline(two_kinds());
  constexpr int64_t kCommon = kTokens * 16 * 4, kWide = kTokens * 32 * 4;
  EXPECT_EQ(snapshots[0].bytes[other], 5 * kWide);
  EXPECT_EQ(snapshots[1].bytes[other], 2 * (kCommon + kWide) + kTokens * (8 + 4));
  ForecastInputs inputs = two_kinds();
  inputs.model.full_heads->width = 32;
  EXPECT_EQ(memory_timeline(inputs)[0].bytes[other], 2 * kCommon + 5 * kCommon);
  inputs.model.rotary_tables = 0;
  EXPECT_EQ(memory_timeline(inputs)[0].bytes[other], 0);
}

TEST(TwoKinds, pass_through_buffers_of_their_own_beside_the_larger_workspace) {
  ForecastInputs inputs = two_kinds();
  inputs.flash_threads = 2;
  const LayerKinds kinds = layer_kinds(inputs);
  const int64_t workspace = std::max(attention_snapshots(kinds.inputs[0], 8, 4).flash_workspace_bytes,
                                     attention_snapshots(kinds.inputs[1], 8, 2).flash_workspace_bytes);
  EXPECT_GT(workspace, 0);
  int64_t found = 0;
  for (const MemorySnapshot& snapshot : memory_timeline(inputs)) {
    const std::string name = snapshot.name();
    if (!name.ends_with("projection") && !name.ends_with("tiles before attention")) continue;
    const int64_t values = snapshot.layer == 2 || snapshot.layer == 4 ? (8 + 4) * 64 : (8 + 8) * 32;
    EXPECT_EQ(snapshot.bytes[attention], workspace + 4 * kTokens * values) << name;
    ++found;
  }
  EXPECT_EQ(found, 5 + 5);
}

// Layouts, kernels and policies that read heads' sizes.
TEST(TwoKinds, of_equal_heads_have_the_peaks_of_one_kind) {
  for (const auto& [ulysses, ring, chunks] : {std::tuple{1, 1, 1}, {4, 1, 1}, {2, 2, 1}, {2, 1, 2}})
    for (const Recompute policy : {Recompute::full, Recompute::keep_attention, Recompute::none})
      for (const int64_t every : {1, 2})
        for (const DeviceKernels& device :
             {DeviceKernels{.threads = 2}, DeviceKernels{.on_gpu = true, .cuda = true, .flash4 = true}}) {
          if (policy == Recompute::none && every > 1) continue;
          ForecastInputs inputs = two_kinds();
          inputs.model.unit_elements = {1 << 18, 1 << 16, 1 << 16, 1 << 16, 1 << 16, 1 << 16, 1 << 18};
          inputs.tokens = 300'000;  // blocks of keys
          inputs.recompute = {policy, every, 1, 5};
          inputs.zero = 3;
          inputs.storage_bytes = inputs.tile_bytes = device.cuda ? 2 : 4;
          inputs.device_is_host = !device.cuda;
          inputs.head_chunks = chunks;
          inputs = with_device(inputs, device, device.cuda ? Precision::bf16 : Precision::fp32);
          inputs = with_sequence_ranks(inputs, ulysses, ring, 1 % (ulysses * ring));
          ForecastInputs one = inputs;
          one.model.full_heads.reset();
          inputs.model.full_heads = inputs.model.common_heads();
          const auto snapshots = memory_timeline(inputs), of_one = memory_timeline(one);
          ASSERT_EQ(snapshots.size(), of_one.size());
          for (size_t i = 0; i < snapshots.size(); ++i) {
            // A GPU's dense calls are not for documents longer than a window.
            const int64_t layer = snapshots[i].layer;
            if (device.cuda && layer >= 0 && layer != 2 && layer != 4)
              EXPECT_LE(snapshots[i].bytes.total(), of_one[i].bytes.total()) << snapshots[i].name();
            else
              EXPECT_EQ(snapshots[i].bytes, of_one[i].bytes) << snapshots[i].name();
          }
          EXPECT_EQ(memory_forecast(inputs).peak_total_bytes, memory_forecast(one).peak_total_bytes);
          EXPECT_EQ(kept_bytes_of_layers(inputs), kept_bytes_of_layers(one));
        }
}

// Those of memory-efficient attention, key/value head by key/value head.
TEST(AttentionSnapshots, of_the_widest_heads_in_16_bits_are_calls_of_a_key_value_head) {
  constexpr int64_t n = 4096, H = 8, K = 2, kCall = H / K;
  ForecastInputs inputs;
  inputs.model.heads = H;
  inputs.model.kv_heads = K;
  inputs.fused_on_gpu = true;
  inputs.device_is_host = false;
  inputs.storage_bytes = inputs.tile_bytes = 2;
  const auto snapshots = [&](int64_t width, int64_t tokens) {
    inputs.model.head_dim = width;
    return attention_snapshots(with_batch(inputs, 1, tokens), H, K);
  };
  constexpr int64_t D = 512, kHead = n * D * 2, kLse = n * H * 4;
  EXPECT_EQ(snapshots(256, n).forward.front().attention, n * H * 256 * 2 + kLse);
  EXPECT_EQ(snapshots(D, n).forward.front().attention, H * kHead + kLse + kCall * kHead);
  const int64_t gradients = (H + 2 * K) * kHead;
  const int64_t of_heads = kCall * (n * (D + 1) * 4 + 2 * kHead);  // fp32 dq, a sum; dk and dv
  const int64_t of_call = 3 * kCall * kHead + 2 * kHead;           // d(o), o, dq; dk and dv summed
  const int64_t of_blocks = int64_t{200} * 2 * 64 * D * 4;
  EXPECT_EQ(snapshots(D, n).backward.front().attention, gradients + of_heads + of_call + of_blocks);
  // Rows of 12 x 512 values, beyond 2^31 of which q, k and v of a call are copied.
  constexpr int64_t kLong = (int64_t{1} << 31) / (12 * D);
  const auto of_a_token = [&](int64_t tokens) {
    return snapshots(D, tokens).forward.front().attention / tokens;
  };
  EXPECT_EQ(of_a_token(kLong + 1), of_a_token(kLong) + (kCall + 2) * D * 2);
  // A CPU's kernel takes all heads.
  inputs.fused_on_gpu = false;
  EXPECT_EQ(snapshots(D, n).backward.front().attention, gradients);
}

}  // namespace
}  // namespace trireme::two_kinds_test
