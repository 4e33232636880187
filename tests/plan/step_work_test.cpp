// The counts of a step's work, held against the formulas of the field and against each other.
#include "trireme/plan/step_work.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "trireme/forecast/recompute_cost.h"

#include "tests/plan/planned_step.h"
#include "tests/plan/work_amounts.h"

namespace trireme::testing {
namespace {

TEST(StepWork, products_without_recompute_are_6_N_T) {
  EXPECT_EQ(matmul_parameters(small_model()), kSmallParameters);
  EXPECT_DOUBLE_EQ(products_of(small_step(2048, Recompute::none)), 6 * kSmallParameters * 2048);
}

// Four layers that adapt every projection at rank 8.
TEST(StepWork, of_lora_has_no_gradient_of_what_stays_and_steps_sums_and_sends_adapters_alone) {
  constexpr double kRank = 8, kOfLayer = kRank * (3 * 256 + 512 + 256 + 256 + 2 * 256 + 2 * 768 + 768 + 256);
  PlannedStep step = small_step(2048, Recompute::none);
  step.inputs.ranks = 2;
  step.inputs.zero = 2;
  const PlannedStep whole = step;
  testing::adapt_layers(step.inputs.model, static_cast<int64_t>(kRank), static_cast<int64_t>(kOfLayer));
  EXPECT_EQ(amount_of(step, WorkKind::weight_gradient), 0);
  // Forward once and backward three times as much.
  EXPECT_DOUBLE_EQ(amount_of(step, WorkKind::matmul),
                   4 * kSmallParameters * 2048 + 4 * 2 * 4 * kOfLayer * 2048);
  EXPECT_GT(amount_of(step, WorkKind::copy), amount_of(whole, WorkKind::copy));
  EXPECT_EQ(amount_of(step, WorkKind::optimizer), 4 * kOfLayer / 2);
  EXPECT_EQ(sent_bytes(step, TrafficKind::summed_gradients), 4 * kOfLayer * 4 / 2);
  const double attention = whole.model_flops() - 6 * kSmallParameters * whole.tokens();
  EXPECT_DOUBLE_EQ(step.model_flops(), (4 * kSmallParameters + 6 * 4 * kOfLayer) * step.tokens() + attention);
  // Of half as many modules half of it.
  testing::adapt_layers(step.inputs.model, static_cast<int64_t>(kRank), static_cast<int64_t>(kOfLayer / 2));
  EXPECT_DOUBLE_EQ(amount_of(step, WorkKind::matmul), 4 * kSmallParameters * 2048 + 4 * 4 * kOfLayer * 2048);
}

TEST(StepWork, attention_is_4_D_forward_and_10_D_backward_a_pair_of_each_head) {
  const PlannedStep step = small_step(2048, Recompute::keep_attention);
  EXPECT_DOUBLE_EQ(amount_of(step, WorkKind::attention_forward), 4 * 32 * 8 * step.attention_pairs.common);
  EXPECT_DOUBLE_EQ(amount_of(step, WorkKind::attention_backward), 10 * 32 * 8 * step.attention_pairs.common);
}

TEST(StepWork, model_flops_are_those_of_the_field) {
  const PlannedStep step = small_step(2048, Recompute::full);
  EXPECT_DOUBLE_EQ(step.model_flops(), 6 * kSmallParameters * 2048 + 6.0 * 4 * 8 * 32 * 2048 * 2048);
}

TEST(StepWork, recompute_repeats_what_its_policy_drops_and_no_down_projection) {
  const double kept = products_of(small_step(2048, Recompute::none));
  const double again = 2 * 2048 * 4 * (256.0 * 512 + 256.0 * 256 + 2 * 256.0 * 768);
  EXPECT_DOUBLE_EQ(products_of(small_step(2048, Recompute::keep_attention)), kept + again);
  EXPECT_DOUBLE_EQ(products_of(small_step(2048, Recompute::full)), kept + again);
  EXPECT_DOUBLE_EQ(amount_of(small_step(2048, Recompute::full), WorkKind::attention_forward),
                   2 * amount_of(small_step(2048, Recompute::none), WorkKind::attention_forward));
}

TEST(StepWork, each_layer_that_keeps_attention_saves_its_forward_alone) {
  PlannedStep step = small_step(2048, Recompute::keep_attention);
  const double kept = amount_of(step, WorkKind::attention_forward);
  for (const int64_t every : {1, 2, 4})
    for (const int64_t layers : {0, 1, 2, 3, 4}) {
      step.inputs.recompute.checkpoint_every = every;
      step.inputs.recompute.keep_fraction = static_cast<double>(layers) / 4;
      EXPECT_DOUBLE_EQ(amount_of(step, WorkKind::attention_forward),
                       kept * static_cast<double>(4 + 4 - layers) / 4)
          << layers << " layers, groups of " << every;
    }
}

TEST(StepWork, each_layer_that_keeps_a_part_saves_the_products_that_make_it) {
  PlannedStep step = small_step(2048, Recompute::none);
  const double kept = products_of(step), copies = amount_of(step, WorkKind::copy);
  for (int64_t qkv = 0; qkv <= 4; ++qkv)
    for (int64_t mlp = 0; mlp <= 4; ++mlp) {
      step.inputs.recompute = plan_keeping({4, qkv, mlp}, 1, 4);
      const double again = static_cast<double>(4 - qkv) * 256 * 512 +
                           static_cast<double>(4 - mlp) * (256.0 * 256 + 2 * 256.0 * 768);
      EXPECT_DOUBLE_EQ(products_of(step), kept + 2 * 2048 * again) << qkv << " " << mlp;
      // x1 is copied where it is kept, and where it is made again.
      EXPECT_DOUBLE_EQ(amount_of(step, WorkKind::copy), copies);
    }
}

TEST(StepWork, a_decoder_copies_y_and_its_gradient_only_where_tiles_have_another_dtype) {
  PlannedStep step = small_step(2048, Recompute::none);
  const double copies = amount_of(step, WorkKind::copy);
  step.inputs.storage_bytes = 2;
  EXPECT_DOUBLE_EQ(amount_of(step, WorkKind::copy), copies + 4 * 3 * 2048 * 256.0);  // y; dy and d(x)
}

// layer_runner.h's table; with head chunks q, k and v travel with attention, forward and backward.
TEST(StepWork, exchanges_are_those_of_the_engine) {
  const auto sent = [](const KeptLayers& kept, int chunks) {
    PlannedStep step = small_step(4096, Recompute::none, 2);
    step.inputs.recompute = plan_keeping(kept, 1, 4);
    step.inputs.head_chunks = chunks;
    return sent_bytes(step, TrafficKind::ulysses);
  };
  const double value = 4 * 2048 * 4 * 0.5;  // of four layers' shards, in fp32, sent to the other rank
  const double q = value * 8 * 32, qkv = value * 16 * 32;
  EXPECT_DOUBLE_EQ(sent({4, 4, 4}, 1), (qkv + q) + (q + qkv));
  EXPECT_DOUBLE_EQ(sent({4, 0, 0}, 1), (qkv + q) + (qkv + 2 * q + qkv));
  EXPECT_DOUBLE_EQ(sent({0, 4, 0}, 1), (qkv + q) + (q + q + qkv));
  EXPECT_DOUBLE_EQ(sent({}, 1), (qkv + q) + (qkv + q + q + qkv));
  for (const KeptLayers& kept : {KeptLayers{4, 4, 4}, {4, 0, 0}})
    EXPECT_DOUBLE_EQ(sent(kept, 2), (qkv + q) + (qkv + 2 * q + qkv));
  EXPECT_DOUBLE_EQ(sent({}, 2), (qkv + q) + (qkv + q) + (qkv + 2 * q + qkv));
}

TEST(StepWork, groups_of_layers_run_all_but_the_last_once_more) {
  constexpr double kOut = 256.0 * 256, kMlp = 3 * 256.0 * 768, kQkv = 256.0 * 512;
  for (const auto& [policy, again] :
       {std::pair{Recompute::keep_attention, kOut + kMlp}, {Recompute::full, kOut + kMlp + kQkv}}) {
    PlannedStep step = small_step(2048, policy);
    const double single = products_of(step);
    step.inputs.recompute.checkpoint_every = 2;
    EXPECT_DOUBLE_EQ(products_of(step), single + 2 * 2048 * 2 * again);
  }
}

// recompute_cost.h, by which --recompute auto chooses groups, and the planner count the same products.
TEST(StepWork, a_second_forward_is_what_the_cost_of_recomputing_says) {
  for (const auto& [post_norms, tiles, experts] : {std::tuple{false, TileFormula::decoder, false},
                                                   {true, TileFormula::decoder, false},
                                                   {false, TileFormula::decoder, true},
                                                   {false, TileFormula::encoder, false}}) {
    PlannedStep step =
        experts ? mixture_step(2048, Recompute::keep_attention) : small_step(2048, Recompute::keep_attention);
    step.inputs.model.post_norms = post_norms;
    step.inputs.model.tiles = tiles;
    const double products = products_of(step),
                 cost = product_flops_made_again(step.inputs.recompute, step.inputs);
    step.inputs.recompute.checkpoint_every = 4;
    EXPECT_DOUBLE_EQ(products_of(step) - products,
                     2048 * (product_flops_made_again(step.inputs.recompute, step.inputs) - cost))
        << post_norms;
  }
}

TEST(StepWork, a_head_that_no_cache_holds_has_rates_of_its_own) {
  PlannedStep step = small_step(2048, Recompute::none);
  EXPECT_EQ(amount_of(step, WorkKind::head_matmul), 0);
  step.inputs.model.vocab = 32000;
  EXPECT_DOUBLE_EQ(amount_of(step, WorkKind::head_matmul), 4 * 256.0 * 32000 * 2048);
  EXPECT_DOUBLE_EQ(amount_of(step, WorkKind::head_weight_gradient), 2 * 256.0 * 32000 * 2048);
}

TEST(StepWork, the_first_product_of_a_weights_gradient_does_not_read_the_sum) {
  const auto rows = [](const PlannedStep& step) {
    double rows = 0;
    for (const WorkItem& item : step_work(step).items)
      if (item.kind == WorkKind::weight_gradient) rows = std::max(rows, item.width);
    return rows;
  };
  PlannedStep step = small_step(2048, Recompute::none);
  step.inputs.model.vocab = 32000;  // whose product has a rate of its own
  step.inputs.tile_tokens = 2048;
  EXPECT_DOUBLE_EQ(rows(step), 2048 * 2.0);
  step.inputs.tile_tokens = 1024;
  EXPECT_DOUBLE_EQ(rows(step), 1024 * 4.0 / 3);
  step.inputs.micro_batches = 4;
  EXPECT_DOUBLE_EQ(rows(step), 1024 * 16.0 / 15);
  step.inputs.zero = 2;  // each micro-batch has a sum of its own
  EXPECT_DOUBLE_EQ(rows(step), 1024 * 4.0 / 3);
}

TEST(StepWork, each_unit_is_stepped_by_itself_and_sharded_where_the_optimizer_is) {
  PlannedStep step = small_step(2048, Recompute::none, 1, 1, 4);
  for (const int zero : {0, 1}) {
    step.inputs.zero = zero;
    double largest = 0;
    for (const WorkItem& item : step_work(step).items)
      if (item.kind == WorkKind::optimizer) largest = std::max(largest, item.size);
    EXPECT_DOUBLE_EQ(largest, (kSmallLayer + 512) / (zero == 0 ? 1 : 4));
  }
}

TEST(StepWork, norms_of_q_and_k_make_their_projection_again_in_backward) {
  PlannedStep step = small_step(2048, Recompute::none);
  const double plain = products_of(step);
  step.inputs.model.qk_norm = true;
  EXPECT_DOUBLE_EQ(products_of(step), plain + 4 * 2 * 2048 * 256.0 * (8 + 4) * 32);
}

TEST(StepWork, queries_beyond_the_positions_of_pretraining_are_scaled_forward_and_backward) {
  PlannedStep step = small_step(2048, Recompute::none);
  const double plain = amount_of(step, WorkKind::copy);
  step.inputs.model.most_unscaled_tokens = 2048;
  EXPECT_DOUBLE_EQ(amount_of(step, WorkKind::copy), plain);
  step.inputs.model.most_unscaled_tokens = 1024;
  EXPECT_DOUBLE_EQ(amount_of(step, WorkKind::copy), plain + 4 * 2 * 2048 * 256.0);
}

// As families/decoder_layer.cpp: two norms more forward; their backward reads what the out and the down
// projection made, which recompute makes again; the first norm's result is made again in any case.
TEST(StepWork, norms_behind_each_part_make_the_down_projection_again) {
  const double values = 4 * 2048 * 256.0, down = 4 * 2 * 2048 * 256.0 * 768;
  for (const Recompute recompute : {Recompute::none, Recompute::full}) {
    const bool again = recompute == Recompute::full;
    PlannedStep step = small_step(2048, recompute);
    const double products = products_of(step), norms = amount_of(step, WorkKind::norm),
                 backward = amount_of(step, WorkKind::norm_backward),
                 activations = amount_of(step, WorkKind::activation);
    step.inputs.model.post_norms = true;
    EXPECT_DOUBLE_EQ(products_of(step), products + (again ? down : 0));
    EXPECT_DOUBLE_EQ(amount_of(step, WorkKind::norm), norms + 3 * values);
    EXPECT_DOUBLE_EQ(amount_of(step, WorkKind::norm_backward), backward + 2 * values);
    EXPECT_DOUBLE_EQ(amount_of(step, WorkKind::activation), activations + (again ? 3 * values : 0));
  }
}

TEST(StepWork, an_encoder_without_what_its_mlp_keeps_makes_the_down_projection_again) {
  PlannedStep none = small_step(2048, Recompute::none), full = small_step(2048, Recompute::full);
  none.inputs.model.tiles = full.inputs.model.tiles = TileFormula::encoder;
  const double again = 2 * 2048 * 4 * (256.0 * 512 + 256.0 * 256 + 2 * 256.0 * 768);
  EXPECT_DOUBLE_EQ(products_of(full), products_of(none) + again);
  EXPECT_DOUBLE_EQ(products_of(none), 6 * matmul_parameters(none.inputs.model) * 2048);
}

TEST(StepWork, ulysses_packs_and_joins_what_it_exchanges) {
  const double alone = 2 * amount_of(small_step(4096, Recompute::none, 2), WorkKind::copy) -
                       amount_of(small_step(4096, Recompute::none), WorkKind::copy);
  // q, k and v there; o back; d(o) there; twice the gradients of q, k and v.
  EXPECT_DOUBLE_EQ(alone, 4 * 4096.0 * (3 * 16 * 32 + 2 * 8 * 32));
}

TEST(StepWork, ranks_share_the_work_of_one) {
  const PlannedStep one = small_step(4096, Recompute::keep_attention);
  for (const auto& [ulysses, ring] : {std::pair{4, 1}, {2, 2}, {1, 4}}) {
    const PlannedStep four = small_step(4096, Recompute::keep_attention, ulysses, ring);
    for (const WorkKind kind : {WorkKind::matmul, WorkKind::weight_gradient, WorkKind::attention_forward,
                                WorkKind::attention_backward, WorkKind::norm, WorkKind::cross_entropy})
      EXPECT_DOUBLE_EQ(4 * amount_of(four, kind), amount_of(one, kind)) << name_of(kind);
  }
}

// In fp32, in copies of 8 bytes: 20 a value of o forward, 12 a value of dq, dk and dv backward.
TEST(StepWork, a_ring_adds_up_what_each_round_gives) {
  const auto copies = [](int ring) {
    return amount_of(small_step(4096, Recompute::keep_attention, 1, ring), WorkKind::copy) * ring;
  };
  const double o = 4096.0 * 256, qkv = 4096.0 * 512;
  EXPECT_NEAR(copies(4) - copies(2), 2 * 4 * (o * 20 + qkv * 12) / 8, 1);
}

TEST(StepWork, accumulation_repeats_the_passes_and_not_the_update) {
  PlannedStep step = small_step(2048, Recompute::full, 2);
  step.inputs.zero = 1;
  const StepWork once = step_work(step);
  step.inputs.micro_batches = 3;
  const StepWork thrice = step_work(step);
  for (size_t i = 0; i < once.items.size(); ++i) {
    const bool update = once.items[i].kind == WorkKind::optimizer;
    EXPECT_DOUBLE_EQ(thrice.items[i].amount, (update ? 1 : 3) * once.items[i].amount);
  }
  EXPECT_DOUBLE_EQ(sent_bytes(step, TrafficKind::summed_gradients), kSmallElements * 4 / 2);
}

// arXiv 1910.02054, section 7: stages 0 to 2 send twice the parameters, stage 3 three times.
TEST(StepWork, zero_sends_what_its_paper_says) {
  for (const int zero : {0, 1, 2, 3}) {
    PlannedStep step = small_step(2048, Recompute::full, 1, 1, 4);
    step.inputs.zero = zero;
    double sent = 0;
    for (const TrafficItem& item : step_work(step).traffic) sent += item.bytes;
    EXPECT_NEAR(sent / (kSmallElements * 4 * 3 / 4), zero == 3 ? 3 : 2, 0.15) << zero;
  }
}

// arXiv 1910.02054, section 3.1: two moments of 4 bytes, with a master of 4 where values have 16 bits.
TEST(StepWork, an_optimizer_on_a_disk_reads_and_writes_each_state_once_a_step) {
  const auto bytes_of = [](int64_t tile_bytes, int moments, int64_t state_bytes, Offload offload) {
    PlannedStep step = small_step(2048, Recompute::full, 1, 1, 4);
    step.inputs.micro_batches = 3;
    step.inputs.zero = 1;
    step.inputs.tile_bytes = tile_bytes;
    step.inputs.moments = moments;
    step.inputs.state_bytes = state_bytes;
    step.inputs.offload.optimizer = offload;
    return sent_bytes(step, TrafficKind::offloaded_optimizer);
  };
  EXPECT_DOUBLE_EQ(bytes_of(4, 2, 4, Offload::disk), 8 * kSmallElements / 4);
  EXPECT_DOUBLE_EQ(bytes_of(2, 2, 4, Offload::disk), 12 * kSmallElements / 4);
  EXPECT_DOUBLE_EQ(bytes_of(2, 2, 2, Offload::disk), 8 * kSmallElements / 4);
  EXPECT_DOUBLE_EQ(bytes_of(2, 0, 4, Offload::disk), 4 * kSmallElements / 4);
  EXPECT_EQ(bytes_of(2, 2, 4, Offload::cpu), 0);
}

// Its products, and 16 + 36 bytes a score in fp32, of which a copied value has 8; 12 + 26 in 16 bits, of 4. Blocks of
// 1,024 rows are cut by the diagonal, and where a layer slides by the window's other end.
TEST(StepWork, attention_by_tiles_is_products_and_the_bytes_of_its_scores) {
  for (const int64_t bytes : {4, 2})
    for (const int sliding : {0, 2}) {
      PlannedStep fused = small_step(4096, Recompute::none), tiles = fused;
      fused.inputs.storage_bytes = tiles.inputs.storage_bytes = bytes;
      tiles.inputs.score_tiles = true;
      if (sliding > 0) tiles.inputs.model.layer_windows = {512, 0, 512, 0};
      const double pairs = 8 * (4 * 4096.0 * 4096 / 2 + (4 + sliding) * 4096.0 * 512);
      EXPECT_DOUBLE_EQ(products_of(tiles), products_of(fused) + 14 * 32 * pairs);
      EXPECT_DOUBLE_EQ(amount_of(tiles, WorkKind::copy),
                       amount_of(fused, WorkKind::copy) + (bytes == 4 ? 52.0 / 8 : 38.0 / 4) * pairs);
      EXPECT_EQ(
          amount_of(tiles, WorkKind::attention_forward) + amount_of(tiles, WorkKind::attention_backward), 0);
    }
}

// docs/methods/offload.md: a sum goes to the host at each close, and comes back for the next micro-batch.
TEST(StepWork, sums_of_each_micro_batch_go_to_the_hosts_optimizer_and_come_back) {
  PlannedStep step = stepped_on_the_host(/*is_gpu=*/true);
  step.inputs.zero = 2;
  const double value = 4;
  EXPECT_DOUBLE_EQ(sent_bytes(step, TrafficKind::offloaded_gradients), kSmallElements * (4 + value));
  step.inputs.micro_batches = 3;
  EXPECT_DOUBLE_EQ(sent_bytes(step, TrafficKind::offloaded_gradients), kSmallElements * (4 * 5 + value));
  step.inputs.zero = 1;
  EXPECT_DOUBLE_EQ(sent_bytes(step, TrafficKind::offloaded_gradients), kSmallElements * (4 + value));
}

}  // namespace
}  // namespace trireme::testing
