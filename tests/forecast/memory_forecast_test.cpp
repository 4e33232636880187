// The forecast for a model of today, against sums made by hand. The binary links no libtorch.
#include "trireme/forecast/memory_forecast.h"

#include <limits>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/forecast/choose_recompute.h"
#include "trireme/forecast/memory_options.h"
#include "trireme/forecast/memory_timeline.h"
#include "trireme/forecast/store_bytes.h"
#include "trireme/shard/optimizer_bytes.h"

#include "tests/forecast/llama_3_8b.h"

namespace trireme {
namespace {

using enum MemoryCategory;
using namespace forecast_test;
using ::testing::HasSubstr;

TEST(Forecast, knows_the_elements_of_llama_3_8b) {
  int64_t elements = 0;
  for (const int64_t unit : llama_3_8b(1).model.unit_elements) elements += unit;
  EXPECT_EQ(elements, 8030261248);
}

TEST(Forecast, of_llama_3_8b_is_the_sum_of_its_buffers) {
  constexpr int64_t kTokens = int64_t{1} << 20, kRankTokens = kTokens / 8, kShare = 8030261248 / 8;
  const MemoryForecast forecast = memory_forecast(llama_3_8b(kTokens));
  // Every unit divides by 8 x 16 elements. The embedding and the first layer are gathered together.
  EXPECT_EQ(forecast.peak[parameters], (kShare + kHidden + kVocab * kHidden + kLayerElements) * 2);
  // Beside the last layer's backward the head's gradient is summed over ranks.
  EXPECT_EQ(forecast.peak[gradients], (kShare + kHidden + kVocab * kHidden + kLayerElements) * 4);
  EXPECT_EQ(forecast.peak[optimizer], kShare * (2 + 4 + 4));  // the bits that bf16 values lack, and moments
  // The input of every layer, and the running x.
  EXPECT_EQ(forecast.peak[activations], (kLayers + 1) * kRankTokens * kHidden * 2);
  // q, k and v, o and d(o), dq, dk and dv of 4 + 2 heads; log-sum-exp; the kernel's fp32 dq with its row
  // sums, dk and dv of every query head.
  const int64_t head = kTokens * 128 * 2, lse = kTokens * 4 * 4;
  EXPECT_EQ(forecast.peak[attention],
            head * (6 + 4 + 4 + 6) + lse + kTokens * 4 * (128 + 1) * 4 + 2 * head * 4);
  EXPECT_EQ(forecast.host, MemoryBytes{});
}

TEST(Forecast, of_scaled_queries_has_a_factor_for_each_token_beyond_the_positions_of_pretraining) {
  ForecastInputs inputs = llama_3_8b(1 << 17);
  const int64_t before = memory_forecast(inputs).peak_total_bytes;
  inputs.model.most_unscaled_tokens = inputs.tokens;
  EXPECT_EQ(memory_forecast(inputs).peak_total_bytes, before);
  inputs.model.most_unscaled_tokens = inputs.tokens - 1;
  EXPECT_EQ(memory_forecast(inputs).peak_total_bytes, before + 4 * inputs.tokens / 8);
}

TEST(Forecast, of_ranks_on_gpus_has_nccls_buffers_throughout) {
  ForecastInputs inputs = llama_3_8b(int64_t{1} << 20);
  const MemoryForecast before = memory_forecast(inputs);
  inputs.peer_buffers_bytes = 1 << 28;
  inputs.machine_ranks = 8;
  const MemoryForecast with_buffers = memory_forecast(inputs);
  EXPECT_EQ(with_buffers.peak[communication], before.peak[communication] + (int64_t{7} << 28));
  EXPECT_EQ(with_buffers.peak_total_bytes, before.peak_total_bytes + (int64_t{7} << 28));
}

// o that was kept by tokens comes back in one message with d(o); the kernel copies both. Kept by heads,
// beside q, k and v, it does not travel.
TEST(Forecast, of_attention_backward_has_copies_of_o_and_its_gradient_only_where_they_come_together) {
  constexpr int64_t kTokens = int64_t{1} << 20, kHead = kTokens * 128 * 2, kLse = kTokens * 4 * 4;
  ForecastInputs inputs = llama_3_8b(kTokens);
  const auto peak_with = [&](Recompute recompute, double keep_qkv_fraction) {
    inputs.recompute = {recompute, 1, 1, kLayers, keep_qkv_fraction};
    return memory_forecast(inputs).peak[attention];
  };
  const int64_t nothing_kept = peak_with(Recompute::full, 0);
  EXPECT_EQ(peak_with(Recompute::keep_attention, 0), nothing_kept - kLse + 2 * kHead * 4);
  EXPECT_EQ(peak_with(Recompute::keep_attention, 1), nothing_kept - kLse - kHead * (6 + 4));
}

// cuDNN's graphs of segments (kernels/attention_graph.h) have dk and dv of every query head in fp32, and the
// log-sum-exp once more, by rows; q, k and v are copied.
TEST(Forecast, of_graphs_of_segments_has_their_sums_in_fp32) {
  constexpr int64_t kTokens = int64_t{1} << 20;
  ForecastInputs inputs = llama_3_8b(kTokens);
  const int64_t others = memory_forecast(inputs).peak[attention];
  inputs.packed_graphs = true;
  constexpr int64_t kCopies = kTokens * (4 + 2) * 128 * 2;  // of q, k and v
  EXPECT_EQ(memory_forecast(inputs).peak[attention],
            others + 2 * kTokens * 4 * 128 * (4 - 2) + kTokens * 4 * 4 + kCopies);
  // Of several samples FlashAttention has these copies too.
  inputs.batch = 2;
  const int64_t graphs = memory_forecast(inputs).peak[attention];
  inputs.packed_graphs = false;
  EXPECT_EQ(graphs, memory_forecast(inputs).peak[attention] +
                        2 * (2 * kTokens * 4 * 128 * (4 - 2) + kTokens * 4 * 4));
}

// A unit of 8 x 160 elements over 8 ranks. NCCL, and ranks that read each other's memory, reduce to the share
// itself, and all-reduce in place.
TEST(Forecast, of_a_sum_over_ranks_has_their_blocks_where_neither_the_library_nor_a_reader_sums) {
  constexpr int64_t kUnit = 8 * 160, kSum_bytes = 160 * 4;
  ForecastInputs inputs = llama_3_8b(1024);
  EXPECT_EQ(sum_buffer_bytes(inputs, kUnit), kUnit * 4 + kSum_bytes);
  EXPECT_EQ(begun_sum_bytes(inputs, kUnit), kUnit * 4);
  inputs.rank_sums = RankSums::by_library;
  EXPECT_EQ(sum_buffer_bytes(inputs, kUnit), kSum_bytes);
  EXPECT_EQ(begun_sum_bytes(inputs, kUnit), kSum_bytes);
  for (const int zero : {0, 1}) {  // in the whole gradient's memory
    inputs.zero = zero;
    EXPECT_EQ(sum_buffer_bytes(inputs, kUnit), 0);
    EXPECT_EQ(begun_sum_bytes(inputs, kUnit), 0);
  }
  inputs.rank_sums = RankSums::while_reading;
  EXPECT_EQ(sum_buffer_bytes(inputs, kUnit), 2 * kSum_bytes)
      << "a sum and a block, of this rank's share at most";
  inputs.zero = 3;
  EXPECT_EQ(begun_sum_bytes(inputs, kUnit), kSum_bytes);
  EXPECT_EQ(sum_buffer_bytes(inputs, kUnit), 3 * kSum_bytes);
  inputs.reduce_bytes = 2;  // a narrowed copy of the gradient; a block, also widened
  EXPECT_EQ(sum_buffer_bytes(inputs, kUnit), kUnit * 2 + kSum_bytes + 160 * (4 + 2 + 4));
}

// With ZeRO 0 and 1 too, beside the backward of a step's last micro-batch.
TEST(Forecast, of_a_sum_beside_backward_has_its_narrowed_copy_and_blocks_until_the_next_units_is_done) {
  ForecastInputs inputs = llama_3_8b(int64_t{1} << 17);
  inputs.reduce_bytes = 2;
  inputs.zero = 1;
  const int64_t copy_and_blocks = kLayerElements * (2 + 2);
  const auto summed_beside_layers = [&] {
    int64_t least = std::numeric_limits<int64_t>::max();
    for (const MemorySnapshot& snapshot : memory_timeline(inputs))
      if (std::string_view(snapshot.pass) == "backward" && snapshot.layer + 1 < kLayers)
        least = std::min(least, snapshot.bytes[communication]);
    return least;
  };
  EXPECT_GE(summed_beside_layers(), copy_and_blocks);
  inputs.update_in_backward = true;
  EXPECT_LT(summed_beside_layers(), copy_and_blocks);
}

TEST(Forecast, of_gathered_keys_has_every_ranks_block_of_their_gradients_where_nccl_does_not_sum) {
  const auto peak = [](int64_t tokens) {
    ForecastInputs inputs = llama_3_8b(tokens);
    inputs.ulysses = 1;
    inputs.ring = 8;
    inputs.gathers_keys = true;
    inputs.rank_heads = 32;
    inputs.rank_kv_heads = 8;
    inputs.rank_sums = RankSums::by_library;
    return memory_forecast(with_batch(inputs, 1, tokens)).peak[communication];
  };
  constexpr int64_t kTokens = int64_t{1} << 17, kToken_bytes = 2 * 8 * 128 * 4;
  const int64_t more = peak(kTokens + 1) - peak(kTokens);
  EXPECT_GE(more, kTokens * kToken_bytes);
  EXPECT_LE(more, (kTokens + 8) * kToken_bytes);
}

// Of two ranks the one that is told.
TEST(MemoryFit, is_fuller_where_either_memory_lacks_than_where_both_hold) {
  const MemoryFit holds{.expected_bytes = 9, .budget_bytes = 10, .expected_host_bytes = 0};
  const MemoryFit lacks{
      .expected_bytes = 5, .budget_bytes = 10, .expected_host_bytes = 11, .host_budget_bytes = 10};
  EXPECT_LE(holds.fullness(), 1);
  EXPECT_GT(lacks.fullness(), 1);
}

RecomputeChoice choose(const ForecastInputs& inputs, int64_t budget_bytes,
                       int64_t host_budget_bytes = MemoryFit::kNoLimit) {
  return choose_recompute(inputs, recompute_ladder(inputs, 1), budget_bytes, host_budget_bytes);
}

TEST(Forecast, fits_attention_of_llama_3_8b_into_a_budget) {
  const ForecastInputs inputs = llama_3_8b(int64_t{1} << 20);
  const int64_t full = memory_forecast(inputs).peak_total_bytes;
  const int64_t kept_bytes =
      inputs.shard_tokens * kHidden * 2 + inputs.tokens * 4 * 4;  // o and log-sum-exp of a layer
  const int64_t copies = 2 * inputs.tokens * 4 * 128 * 2;  // of an o that comes back beside its gradient
  const RecomputeChoice choice = choose(inputs, full + copies + 10 * kept_bytes);
  EXPECT_TRUE(choice.fits());
  EXPECT_EQ(choice.plan.layers_keeping(KeptPart::attention), choice.rung);
  EXPECT_GE(choice.rung, 10);
  EXPECT_LE(choice.rung, 12);
  EXPECT_FALSE(memory_options(inputs).empty());
}

TEST(Forecast, keeps_no_more_than_host_and_device_hold) {
  ForecastInputs inputs = llama_3_8b(int64_t{1} << 20);
  inputs.offload.activations = Offload::cpu;
  constexpr int64_t kMuch_bytes = int64_t{1} << 42;
  const MemoryForecast full = memory_forecast(inputs);
  const int64_t kept_bytes = inputs.shard_tokens * kHidden * 2 + inputs.tokens * 4 * 4;
  EXPECT_EQ(choose(inputs, kMuch_bytes).rung, kLayers);
  // Copies of an o that comes back beside its gradient, and the two layers that stay, in any case.
  const int64_t device_bytes = full.peak_total_bytes + 2 * inputs.tokens * 4 * 128 * 2 + 2 * kept_bytes;
  const RecomputeChoice choice = choose(inputs, device_bytes, full.host.total() + 10 * kept_bytes);
  EXPECT_TRUE(choice.fits());
  EXPECT_GE(choice.rung, 10);
  EXPECT_LE(choice.rung, 14);
  EXPECT_THAT(choice.description(), HasSubstr(", and on the host "));
  EXPECT_EQ(choose(inputs, kMuch_bytes, full.host.total() + 10 * kept_bytes).rung, kLayers)
      << "what the host does not hold stays on the device";
  const RecomputeChoice none = choose(inputs, full.peak_total_bytes, full.host.total() - 1);
  EXPECT_EQ(none.rung, 0);
  EXPECT_FALSE(none.fits());
  EXPECT_FALSE(none.fits_host());
  inputs.offload.activations = Offload::none;
  EXPECT_TRUE(choose(inputs, kMuch_bytes, 0).fits()) << "less kept would free none of it";
}

// 77 KB a token and layer in bf16 beside x: q, k and v, o by tokens and by heads, x1, gate|up; log-sum-exp.
TEST(Forecast, keeps_all_of_llama_3_8b_where_there_is_memory) {
  ForecastInputs inputs = llama_3_8b(32768);
  const int64_t full = memory_forecast(inputs).peak[activations];
  const RecomputeChoice choice = choose(inputs, int64_t{1} << 40);
  EXPECT_EQ(choice.plan.policy, Recompute::none);
  inputs.recompute = choice.plan;
  const int64_t token_bytes = 2 * (6144 + 4096 + 4096 + 4096 + 28672) + 4 * 32;
  EXPECT_EQ(memory_forecast(inputs).peak[activations] - full, kLayers * inputs.shard_tokens * token_bytes);
}

}  // namespace
}  // namespace trireme
