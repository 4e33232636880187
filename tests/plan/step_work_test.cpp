// The counts of a step's work, held against the formulas of the field and against each other.
#include "trireme/plan/step_work.h"

#include <algorithm>
#include <map>

#include <gtest/gtest.h>

#include "trireme/forecast/recompute_cost.h"
#include "trireme/plan/machine_groups.h"
#include "trireme/plan/step_time.h"

#include "tests/plan/planned_step.h"
#include "tests/plan/work_amounts.h"

namespace trireme::testing {
namespace {

TrafficSeconds traffic_of(const StepTime& time, TrafficKind kind) {
  for (const TrafficSeconds& traffic : time.traffic)
    if (traffic.kind == kind) return traffic;
  return {};
}
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
  step.inputs.model.adapter_rank = static_cast<int64_t>(kRank);
  step.inputs.model.adapter_elements.assign(4, static_cast<int64_t>(kOfLayer));
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
  step.inputs.model.adapter_elements.assign(4, static_cast<int64_t>(kOfLayer / 2));
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
  step.accumulation = 4;
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
  step.accumulation = 3;
  const StepWork thrice = step_work(step);
  for (size_t i = 0; i < once.items.size(); ++i) {
    const bool update = once.items[i].kind == WorkKind::optimizer;
    EXPECT_DOUBLE_EQ(thrice.items[i].amount, (update ? 1 : 3) * once.items[i].amount);
  }
  EXPECT_DOUBLE_EQ(sent_bytes(step, TrafficKind::summed_gradients),
                   (4 * kSmallLayer + 8 * 256 + 2 * kSmallHead + 256) * 4 / 2);
}

// arXiv 1910.02054, section 7: stages 0 to 2 send twice the parameters, stage 3 three times.
TEST(StepWork, zero_sends_what_its_paper_says) {
  const auto parameters =
      static_cast<double>(4 * (256 * 512 + 256 * 256 + 3 * 256 * 768 + 512) + 2 * 1024 * 256 + 256);
  for (const int zero : {0, 1, 2, 3}) {
    PlannedStep step = small_step(2048, Recompute::full, 1, 1, 4);
    step.inputs.zero = zero;
    double sent = 0;
    for (const TrafficItem& item : step_work(step).traffic) sent += item.bytes;
    EXPECT_NEAR(sent / (parameters * 4 * 3 / 4), zero == 3 ? 3 : 2, 0.15) << zero;
  }
}

TEST(StepTime, a_gpu_hides_what_comes_ahead_and_a_cpu_hides_nothing) {
  PlannedStep step = small_step(4096, Recompute::full, 1, 1, 4);
  step.inputs.zero = 3;
  for (const bool is_gpu : {true, false}) {
    const StepTime time = step_time(step, round_profile(is_gpu));
    double waited = 0, hidden = 0;
    for (const TrafficSeconds& traffic : time.traffic) {
      waited += traffic.waited_seconds;
      if (traffic.kind == TrafficKind::gathered_parameters) hidden = traffic.seconds - traffic.waited_seconds;
    }
    EXPECT_GT(time.compute_seconds, 0);
    EXPECT_DOUBLE_EQ(time.seconds, time.compute_seconds + waited);
    if (is_gpu) {
      EXPECT_GT(hidden, 0);
    } else {
      EXPECT_EQ(hidden, 0);
    }
  }
}

// arXiv 1910.02054, section 3.1: two moments of 4 bytes, with a master of 4 where values have 16 bits.
TEST(StepWork, an_optimizer_on_a_disk_reads_and_writes_each_state_once_a_step) {
  const double parameters = 4 * (kSmallLayer + 512) + 2 * kSmallHead + 256;
  const auto bytes_of = [](int64_t tile_bytes, int moments, int64_t state_bytes, Offload offload) {
    PlannedStep step = small_step(2048, Recompute::full, 1, 1, 4);
    step.accumulation = 3;
    step.inputs.zero = 1;
    step.inputs.tile_bytes = tile_bytes;
    step.inputs.moments = moments;
    step.inputs.state_bytes = state_bytes;
    step.inputs.offload.optimizer = offload;
    return sent_bytes(step, TrafficKind::offloaded_optimizer);
  };
  EXPECT_DOUBLE_EQ(bytes_of(4, 2, 4, Offload::disk), 8 * parameters / 4);
  EXPECT_DOUBLE_EQ(bytes_of(2, 2, 4, Offload::disk), 12 * parameters / 4);
  EXPECT_DOUBLE_EQ(bytes_of(2, 2, 2, Offload::disk), 8 * parameters / 4);
  EXPECT_DOUBLE_EQ(bytes_of(2, 0, 4, Offload::disk), 4 * parameters / 4);
  EXPECT_EQ(bytes_of(2, 2, 4, Offload::cpu), 0);
}

PlannedStep stepped_on_the_host(bool is_gpu) {
  PlannedStep step = small_step(64, Recompute::full);
  step.inputs.device_is_host = !is_gpu;
  step.inputs.offload.optimizer = Offload::cpu;
  return step;
}

// On a GPU beside the next forward, as the host's arithmetic is: the slowest of the three is seen.
TEST(StepTime, an_optimizer_on_a_disk_takes_the_time_of_its_disk) {
  const auto slower_by = [](bool is_gpu, double write_bytes_per_second) {
    PlannedStep step = stepped_on_the_host(is_gpu);
    HardwareProfile hardware = round_profile(is_gpu);
    hardware.host_optimizer_per_second = 1e12;
    hardware.disk_read = {0, 2e9};
    hardware.disk_write = {0, write_bytes_per_second};
    const double on_host = step_time(step, hardware).seconds;
    step.inputs.offload.optimizer = Offload::disk;
    return step_time(step, hardware).seconds - on_host;
  };
  const double bytes = 8 * (4 * (kSmallLayer + 512) + 2 * kSmallHead + 256);
  EXPECT_NEAR(slower_by(false, 1e9), bytes / 1e9, 1e-12);
  EXPECT_NEAR(slower_by(false, 4e9), bytes / 2e9, 1e-12);
  EXPECT_LT(slower_by(true, 1e9), bytes / 1e9);
  EXPECT_GT(slower_by(true, 1e9), bytes / 2e9);
  EXPECT_EQ(slower_by(true, 1e15), slower_by(true, 2e9));
}

TEST(StepTime, a_gpu_hides_sums_of_gradients_that_are_waited_for_one_unit_later) {
  const auto hides = [](int zero, bool is_gpu, bool update_in_backward = false) {
    PlannedStep step = small_step(4096, Recompute::full, 1, 1, 4);
    step.inputs.zero = zero;
    step.inputs.update_in_backward = update_in_backward;
    step.inputs.device_is_host = !is_gpu;
    for (const TrafficSeconds& traffic : step_time(step, round_profile(is_gpu)).traffic)
      if (traffic.kind == TrafficKind::summed_gradients) return traffic.waited_seconds < traffic.seconds;
    return false;
  };
  EXPECT_TRUE(hides(2, /*is_gpu=*/true));
  EXPECT_TRUE(hides(3, /*is_gpu=*/true));
  EXPECT_FALSE(hides(1, /*is_gpu=*/true));
  EXPECT_FALSE(hides(3, /*is_gpu=*/false));
  EXPECT_FALSE(hides(3, /*is_gpu=*/true, /*update_in_backward=*/true));
}

TEST(StepTime, a_gpu_hides_new_values_of_units_that_it_stepped_itself) {
  const auto traded = [](int zero, bool is_gpu, Offload optimizer) {
    PlannedStep step = small_step(4096, Recompute::full, 1, 1, 4);
    step.inputs.zero = zero;
    step.inputs.device_is_host = !is_gpu;
    step.inputs.offload.optimizer = optimizer;
    return traffic_of(step_time(step, round_profile(is_gpu)), TrafficKind::traded_parameters);
  };
  for (const int zero : {1, 2}) {
    const TrafficSeconds hidden = traded(zero, /*is_gpu=*/true, Offload::none);
    EXPECT_GT(hidden.seconds, 0);
    EXPECT_EQ(hidden.waited_seconds, 0);
    for (const TrafficSeconds& seen :
         {traded(zero, /*is_gpu=*/true, Offload::cpu), traded(zero, /*is_gpu=*/false, Offload::none)}) {
      EXPECT_GT(seen.seconds, 0);
      EXPECT_EQ(seen.waited_seconds, seen.seconds);
    }
  }
}

// Between two ranks that share a sequence, over a link without latency.
TrafficSeconds between_two(PlannedStep step, TrafficKind kind, bool is_gpu, double bytes_per_second) {
  step.inputs.device_is_host = !is_gpu;
  HardwareProfile hardware = round_profile(is_gpu);
  hardware.within_machine = {0, bytes_per_second};
  return traffic_of(step_time(step, hardware), kind);
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

// Of either rank at 4096 tokens: 4 D + 10 D a pair, of half of the pairs of 8 heads in 4 layers.
constexpr double kAttention_seconds = 14.0 * 32 * 8 * 4 * (4096.0 * 4096 / 2) / 2 / 5e11;

TEST(StepTime, a_ring_is_hidden_on_a_gpu_and_gathered_keys_are_not) {
  const auto ring = [](bool is_gpu, bool gathers_keys, double bytes_per_second) {
    PlannedStep step = small_step(4096, Recompute::none, 1, 2);
    step.inputs.gathers_keys = gathers_keys;
    return between_two(step, TrafficKind::ring, is_gpu, bytes_per_second);
  };
  const TrafficSeconds fast = ring(/*is_gpu=*/true, /*gathers_keys=*/false, 1e10);
  EXPECT_GT(fast.seconds, 0);
  EXPECT_EQ(fast.waited_seconds, 0);
  const TrafficSeconds slow = ring(/*is_gpu=*/true, /*gathers_keys=*/false, 1e6);
  EXPECT_NEAR(slow.seconds - slow.waited_seconds, kAttention_seconds, 1e-9);
  for (const TrafficSeconds& seen : {ring(/*is_gpu=*/true, /*gathers_keys=*/true, 1e10),
                                     ring(/*is_gpu=*/false, /*gathers_keys=*/false, 1e10)}) {
    EXPECT_GT(seen.seconds, 0);
    EXPECT_EQ(seen.waited_seconds, seen.seconds);
  }
}

TEST(StepTime, of_head_chunks_a_gpu_waits_for_one_and_for_what_attention_does_not_hide) {
  const auto ulysses = [](bool is_gpu, int head_chunks, double bytes_per_second) {
    PlannedStep step = small_step(4096, Recompute::none, 2);
    step.inputs.head_chunks = head_chunks;
    return between_two(step, TrafficKind::ulysses, is_gpu, bytes_per_second);
  };
  const TrafficSeconds fast = ulysses(/*is_gpu=*/true, 2, 1e10);
  EXPECT_GT(fast.seconds, 0);
  EXPECT_DOUBLE_EQ(fast.waited_seconds, fast.seconds / 2);
  const TrafficSeconds slow = ulysses(/*is_gpu=*/true, 2, 1e6);
  EXPECT_NEAR(slow.seconds - slow.waited_seconds, kAttention_seconds, 1e-9);
  for (const TrafficSeconds& seen : {ulysses(/*is_gpu=*/true, 1, 1e10), ulysses(/*is_gpu=*/false, 2, 1e10)}) {
    EXPECT_GT(seen.seconds, 0);
    EXPECT_EQ(seen.waited_seconds, seen.seconds);
  }
}

TEST(StepTime, a_host_that_steps_longer_than_forward_goes_is_waited_for) {
  const auto time = [](bool is_gpu, double per_second) {
    HardwareProfile hardware = round_profile(is_gpu);
    hardware.host_optimizer_per_second = per_second;
    return step_time(stepped_on_the_host(is_gpu), hardware);
  };
  const double elements = 4 * (kSmallLayer + 512) + 2 * kSmallHead + 256;
  for (const bool is_gpu : {true, false})
    EXPECT_NEAR(time(is_gpu, 1e6).seconds - time(is_gpu, 2e6).seconds, elements / 1e6 - elements / 2e6, 1e-9);
  EXPECT_DOUBLE_EQ(time(/*is_gpu=*/false, 1e6).host_optimizer_waited_seconds, elements / 1e6);
  EXPECT_EQ(time(/*is_gpu=*/true, 1e12).host_optimizer_waited_seconds, 0);
}

TEST(StepTime, what_no_work_explains_is_added_for_each_micro_batch_and_for_the_step) {
  PlannedStep step = small_step(2048, Recompute::full);
  step.accumulation = 4;
  HardwareProfile hardware = round_profile(/*is_gpu=*/true);
  const double explained = step_time(step, hardware).seconds;
  hardware.micro_batch_seconds = 0.5;
  EXPECT_NEAR(step_time(step, hardware).seconds, explained + 2, 1e-9);
  hardware.step_seconds = 0.25;
  EXPECT_NEAR(step_time(step, hardware).seconds, explained + 2.25, 1e-9);
  EXPECT_DOUBLE_EQ(step_time(step, hardware).overhead_seconds, 2.25);
}

TEST(StepTime, mfu_is_of_all_ranks_peak_rate_in_the_precision_of_the_step) {
  PlannedStep step = small_step(2048, Recompute::full, 1, 1, 4);
  HardwareProfile hardware = round_profile(/*is_gpu=*/true);
  hardware.peak_flops_16_bit = 8e12;
  hardware.peak_flops_32_bit = 2e12;
  const double flops = 6 * kSmallParameters * 2048 + 6.0 * 4 * 8 * 32 * 2048 * 2048;  // a rank
  for (const auto& [bytes, peak] : {std::pair{4, 2e12}, {2, 8e12}}) {
    step.inputs.storage_bytes = bytes;
    const StepTime time = step_time(step, hardware);
    EXPECT_NEAR(time.mfu * time.seconds, flops / peak, 1e-12) << bytes;
  }
}

// A link of the network has a tenth of the rate of a machine's links, and a machine as many of them as devices.
TEST(StepTime, what_all_ranks_exchange_goes_over_the_network_where_a_machine_holds_fewer) {
  const auto exchange = [](int zero, TrafficKind kind, int devices_per_machine, double of_network = 1e9,
                           int64_t reduce_bytes = 4) {
    PlannedStep step = small_step(4096, Recompute::full, 1, 1, 8);
    step.inputs.zero = zero;
    step.inputs.reduce_bytes = reduce_bytes;
    HardwareProfile hardware = round_profile(/*is_gpu=*/true);
    hardware.devices_per_machine = devices_per_machine;
    hardware.within_machine = {0, 1e10};
    hardware.across_machines = {0, of_network};
    return traffic_of(step_time(step, hardware), kind);
  };
  for (const auto& [zero, kind] : {std::pair{3, TrafficKind::gathered_parameters},
                                   {3, TrafficKind::summed_gradients},
                                   {1, TrafficKind::traded_parameters}}) {
    const TrafficSeconds across = exchange(zero, kind, 4), within = exchange(zero, kind, 8);
    EXPECT_TRUE(across.crosses_machines) << name_of(kind);
    EXPECT_FALSE(within.crosses_machines) << name_of(kind);
    EXPECT_NEAR(across.seconds / within.seconds, 10. / 4, 1e-9) << name_of(kind);
    EXPECT_NEAR(exchange(zero, kind, 1).seconds / within.seconds, 10, 1e-9) << name_of(kind);
    EXPECT_NEAR(exchange(zero, kind, 4, 1e10).seconds / within.seconds, 1, 1e-9) << name_of(kind);
  }
  // Blocks of 4 of 7 others leave the machine, each over its device's link.
  const TrafficSeconds blocks = exchange(3, TrafficKind::summed_gradients, 4, 1e9, 2);
  EXPECT_NEAR(blocks.seconds, blocks.bytes * 4 / 7 / 1e9, 1e-12);
}

// One unit ahead of the pass that they are for, on the communicator of the sums.
TEST(StepTime, gathers_and_sums_of_a_pass_share_a_link) {
  const auto waited = [](double bytes_per_second) {
    PlannedStep step = small_step(4096, Recompute::full, 1, 1, 4);
    step.inputs.zero = 3;
    step.inputs.device_is_host = false;
    HardwareProfile hardware = round_profile(/*is_gpu=*/true);
    hardware.within_machine = {0, bytes_per_second};
    const StepTime time = step_time(step, hardware);
    return std::pair{traffic_of(time, TrafficKind::gathered_parameters),
                     traffic_of(time, TrafficKind::summed_gradients)};
  };
  const auto [gathers, sums] = waited(1e13);
  EXPECT_EQ(gathers.waited_seconds + sums.waited_seconds, 0);
  const PlannedStep step = small_step(4096, Recompute::full, 1, 1, 4);
  const double compute = step_time(step, round_profile(/*is_gpu=*/true)).compute_seconds;
  // So slow that each by itself is hidden and both are not.
  const double seconds_at_1 = 1e13 * (gathers.seconds + sums.seconds);
  const auto [late_gathers, late_sums] = waited(seconds_at_1 / (1.1 * compute));
  EXPECT_LT(std::max(late_gathers.seconds, late_sums.seconds), compute);
  EXPECT_GE(late_gathers.waited_seconds + late_sums.waited_seconds, 0.09 * compute);
  EXPECT_GT(late_gathers.waited_seconds, 0);
  EXPECT_GT(late_sums.waited_seconds, 0);
}

TEST(StepTime,
     only_the_first_micro_batchs_forward_hides_the_hosts_optimizer_and_with_updates_in_backward_that) {
  PlannedStep step = stepped_on_the_host(/*is_gpu=*/true);
  HardwareProfile hardware = round_profile(/*is_gpu=*/true);
  const auto waited = [&] { return step_time(step, hardware).host_optimizer_waited_seconds; };
  hardware.host_optimizer_per_second = 1e6;
  const double of_one = waited();
  EXPECT_GT(of_one, 0);
  step.accumulation = 4;
  EXPECT_DOUBLE_EQ(waited(), of_one);
  step.accumulation = 1;
  step.inputs.update_in_backward = true;
  EXPECT_LT(waited(), of_one) << "backward is longer than forward";
}

// docs/methods/offload.md: a sum goes to the host at each close, and comes back for the next micro-batch.
TEST(StepWork, sums_of_each_micro_batch_go_to_the_hosts_optimizer_and_come_back) {
  PlannedStep step = stepped_on_the_host(/*is_gpu=*/true);
  step.inputs.zero = 2;
  const double elements = 4 * (kSmallLayer + 512) + 2 * kSmallHead + 256, values = 4;
  EXPECT_DOUBLE_EQ(sent_bytes(step, TrafficKind::offloaded_gradients), elements * (4 + values));
  step.accumulation = 3;
  EXPECT_DOUBLE_EQ(sent_bytes(step, TrafficKind::offloaded_gradients), elements * (4 * (3 + 2) + values));
  step.inputs.zero = 1;
  EXPECT_DOUBLE_EQ(sent_bytes(step, TrafficKind::offloaded_gradients), elements * (4 + values));
}

TEST(StepTime, ranks_on_several_machines_go_over_the_network) {
  const PlannedStep step = small_step(4096, Recompute::full, 8);
  HardwareProfile hardware = round_profile(/*is_gpu=*/true);
  const double across = step_time(step, hardware).seconds;
  hardware.devices_per_machine = 8;
  EXPECT_GT(across, step_time(step, hardware).seconds);
  hardware.devices_per_machine = 4;
  hardware.across_machines = {};
  EXPECT_THROW(step_time(step, hardware), ConfigError);
}

// Of 12 ranks on machines of 4: two, but not three, ranks of a group share a machine in every group.
TEST(StepTime, a_group_that_does_not_divide_a_machine_goes_over_the_network) {
  const auto ulysses = [](int degree) {
    const PlannedStep step = small_step(4096, Recompute::full, degree, 1, 12 / degree);
    return traffic_of(step_time(step, round_profile(/*is_gpu=*/true)), TrafficKind::ulysses);
  };
  EXPECT_FALSE(ulysses(2).crosses_machines);
  EXPECT_TRUE(ulysses(3).crosses_machines);
  EXPECT_GT(ulysses(3).seconds, 5 * ulysses(2).seconds);
}

TEST(MachineGroups, hold_as_many_ranks_of_a_group_as_counting_them_finds) {
  for (int machine = 1; machine <= 9; ++machine)
    for (int degree = 1; degree <= 30; ++degree)
      for (int groups = 1; groups <= 6; ++groups) {
        int fewest = degree;
        for (int group = 0; group < groups; ++group) {
          std::map<int, int> of_machine;
          for (int rank = group * degree; rank < (group + 1) * degree; ++rank) ++of_machine[rank / machine];
          for (const auto& [index, ranks] : of_machine) fewest = std::min(fewest, ranks);
        }
        EXPECT_EQ(fewest_on_a_machine(groups * degree, degree, machine), fewest)
            << groups << " groups of " << degree << " on machines of " << machine;
      }
}

}  // namespace
}  // namespace trireme::testing
