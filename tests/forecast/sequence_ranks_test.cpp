// More ranks a sequence, as the advice proposes them, against counts made by hand. No libtorch.
#include "trireme/forecast/sequence_ranks.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "trireme/forecast/memory_forecast.h"
#include "trireme/forecast/memory_options.h"

namespace trireme::sequence_ranks_test {
namespace {

using enum MemoryCategory;

constexpr int64_t kTokens = 1 << 18, kHidden = 4096, kLayers = 4;

// Rank `rank` of `ranks`, of a model of 8 query and 4 key/value heads; `ulysses` of them share a sequence.
ForecastInputs inputs_of(int ulysses, int ranks, int rank = 0) {
  ForecastInputs inputs;
  inputs.model = {.layers = kLayers,
                  .hidden = kHidden,
                  .intermediate = kHidden,
                  .mlp_kept_width = 2 * kHidden,
                  .heads = 8,
                  .kv_heads = 4,
                  .head_dim = kHidden / 8,
                  .vocab = 1000,
                  .unit_elements = std::vector<int64_t>(kLayers + 2, 1 << 20)};
  inputs.ranks = ranks;
  inputs.rank = rank;
  inputs.recompute = {Recompute::full, 1, 1, kLayers};
  inputs.tile_tokens = inputs.logits_tile_tokens = 256;
  return with_batch(with_sequence_ranks(inputs, ulysses, 1, rank % ulysses), 1, kTokens);
}

TEST(SequenceRanks, give_this_ranks_heads_and_tokens) {
  const ForecastInputs third = inputs_of(4, 4, 2);
  EXPECT_EQ(third.rank_heads, 2);
  EXPECT_EQ(third.rank_kv_heads, 1);
  EXPECT_EQ(third.packed_heads, 8 + 2 * 4);
  EXPECT_EQ(third.shard_tokens, kTokens / 4);
}

TEST(SequenceRanks, exchange_directly_with_other_heads_and_round_the_ring_on_their_machine) {
  const auto peers = [](int ulysses, int ring, int machine_ranks) {
    ForecastInputs inputs = inputs_of(ulysses, ulysses * ring);
    inputs.ring = ring;
    inputs.machine_ranks = machine_ranks;
    return machine_peers(inputs);
  };
  EXPECT_EQ(peers(1, 1, 8), 0);
  EXPECT_EQ(peers(8, 1, 8), 7);
  EXPECT_EQ(peers(8, 1, 4), 3) << "the others are on other machines";
  EXPECT_EQ(peers(2, 2, 8), 1 + 1);
  EXPECT_EQ(peers(2, 4, 8), 1 + 1);
  EXPECT_EQ(peers(1, 8, 8), 1);
  EXPECT_EQ(peers(8, 4, 8), 7) << "ring neighbours are on other machines";
}

TEST(SequenceRanks, exchange_gradients_of_gathered_keys_with_all_of_the_ring_on_their_machine) {
  const auto peers = [](int ulysses, int ring, int machine_ranks) {
    ForecastInputs inputs = inputs_of(ulysses, ulysses * ring);
    inputs.ring = ring;
    inputs.gathers_keys = true;
    inputs.machine_ranks = machine_ranks;
    return machine_peers(inputs);
  };
  EXPECT_EQ(peers(1, 8, 8), 7);
  EXPECT_EQ(peers(2, 4, 8), 1 + 3);
  EXPECT_EQ(peers(2, 8, 8), 1 + 3) << "the others are on other machines";
  EXPECT_EQ(peers(8, 4, 8), 7) << "all of the ring are on other machines";
}

TEST(SequenceRanks, exchange_columns_of_delta_nets_and_blocks_of_sums_with_all_on_their_machine) {
  const auto peers = [](int ulysses, int ring, bool delta_net, int64_t reduce_bytes) {
    ForecastInputs inputs = inputs_of(ulysses, 2 * ulysses * ring);
    inputs.ring = ring;
    inputs.machine_ranks = 8;
    if (delta_net) inputs.model.delta_net.emplace();
    inputs.reduce_bytes = reduce_bytes;
    return machine_peers(inputs);
  };
  EXPECT_EQ(peers(4, 1, true, 4), 3) << "on Ulysses' communicator";
  EXPECT_EQ(peers(1, 4, true, 4), 3) << "on the ring's";
  EXPECT_EQ(peers(2, 2, true, 4), 1 + 1 + 3);
  EXPECT_EQ(peers(4, 1, false, 2), 3 + 7);
}

TEST(SequenceRanks, come_from_data_parallel_ranks_and_keep_the_samples_of_a_step) {
  const auto more = more_sequence_ranks(inputs_of(2, 8, 5));
  ASSERT_TRUE(more.has_value());
  EXPECT_EQ(more->option,
            "--ulysses 4 of these 8 ranks with 2 times the --gradient_accumulation_steps (as many samples a "
            "step)");
  EXPECT_EQ(more->inputs.ranks, 8);
  EXPECT_EQ(more->inputs.sp_rank, 1);
  EXPECT_EQ(more->inputs.shard_tokens, kTokens / 4);
  EXPECT_EQ(more->inputs.rank_heads, 2);
  EXPECT_EQ(more_sequence_ranks(inputs_of(2, 6))->inputs.ulysses, 6) << "three groups become one";
  ForecastInputs in_backward = inputs_of(2, 8);
  in_backward.update_in_backward = true;
  EXPECT_EQ(more_sequence_ranks(in_backward)->option,
            "--ulysses 4 of these 8 ranks (1/2 of the samples a step)");
}

TEST(SequenceRanks, are_more_ranks_where_all_share_a_sequence_already) {
  EXPECT_EQ(more_sequence_ranks(inputs_of(4, 4))->option, "--ulysses 8 on 8 ranks");
  EXPECT_EQ(more_sequence_ranks(inputs_of(4, 4))->inputs.ranks, 8);
}

TEST(SequenceRanks, go_round_a_ring_beyond_the_heads_and_nowhere_where_there_is_none) {
  const auto ring = more_sequence_ranks(inputs_of(8, 8));
  ASSERT_TRUE(ring.has_value());
  EXPECT_EQ(ring->option, "--ring 2 on 16 ranks");
  EXPECT_EQ(ring->inputs.ulysses, 8);
  EXPECT_EQ(ring->inputs.ring, 2);
  EXPECT_EQ(ring->inputs.shard_tokens, kTokens / 16);
  ForecastInputs chunked = inputs_of(4, 4);
  chunked.head_chunks = 2;  // of two heads; eight ranks would have one
  EXPECT_EQ(more_sequence_ranks(chunked)->option, "--ring 2 on 8 ranks");
  ForecastInputs sparse = inputs_of(8, 8);
  sparse.ring_possible = false;
  EXPECT_FALSE(more_sequence_ranks(sparse).has_value());
  EXPECT_FALSE(more_sequence_ranks(with_batch(inputs_of(4, 4), 1, 7)).has_value()) << "a token for each rank";
}

TEST(SequenceRanks, save_what_the_forecast_of_such_a_run_says) {
  const ForecastInputs now = inputs_of(2, 4);
  const MemoryForecast before = memory_forecast(now), after = memory_forecast(inputs_of(4, 4));
  const std::vector<MemoryOption> options = memory_options(now);
  for (const MemoryCategory category : {activations, attention}) {
    const auto option = std::find_if(options.begin(), options.end(), [&](const MemoryOption& each) {
      return each.option.starts_with("--ulysses 4 of these 4 ranks") && each.category == category;
    });
    ASSERT_NE(option, options.end()) << name_of(category);
    EXPECT_EQ(option->kind, MemoryOptionKind::policy);
    EXPECT_NEAR(option->saved_share,
                1 - static_cast<double>(after.peak[category]) / static_cast<double>(before.peak[category]),
                1e-12);
    EXPECT_NEAR(option->saved_share, 0.5, 0.1);
  }
  for (const MemoryOption& option : options)
    EXPECT_EQ(option.kind == MemoryOptionKind::smaller_task, option.option.starts_with("--max_seq_length"));
}

}  // namespace
}  // namespace trireme::sequence_ranks_test
