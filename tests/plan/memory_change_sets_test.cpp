// The laws of the sets of changes, held by the forecast alone: each fits, no change of one is too many, what
// is trained stays, the smallest come first.
#include "trireme/plan/memory_change_sets.h"

#include <set>

#include <gtest/gtest.h>

#include "trireme/forecast/choose_resident_layers.h"
#include "trireme/plan/memory_answer_text.h"

#include "tests/plan/llama_3_8b.h"

namespace trireme::testing {
namespace {

// As a run within the same limits chooses which activations stay on the device.
MemoryForecast forecast_of(PlannedStep& step, const TensorLimits& limits) {
  return choose_resident_layers(
      step.inputs, limits.device_bytes,
      limits.host_bytes > 0 ? limits.host_bytes / limits.machine_ranks : std::numeric_limits<int64_t>::max());
}

bool fits_by_the_forecast(PlannedStep step, const HardwareProfile& hardware, int64_t device_bytes) {
  const TensorLimits limits = limits_of(step, hardware, device_bytes);
  const MemoryForecast forecast = forecast_of(step, limits);
  return forecast.peak_total_bytes <= device_bytes &&
         (limits.host_bytes == 0 || forecast.host.total() * limits.machine_ranks <= limits.host_bytes);
}

PlannedStep applied(PlannedStep step, const std::vector<MemoryChange>& changes) {
  for (const MemoryChange& change : changes) change.apply(step);
  return step;
}

void expect_laws(const PlannedStep& step, const HardwareProfile& hardware, int64_t device_bytes,
                 const MemoryChanges& answer) {
  std::set<std::string> flags;
  EXPECT_LE(answer.sets.size(), 6u);
  size_t changes_before = 1;
  for (size_t i = 0; i < answer.sets.size(); ++i) {
    const MemoryChangeSet& set = answer.sets[i];
    SCOPED_TRACE(set.flags(step));
    EXPECT_TRUE(flags.insert(set.flags(step)).second);
    PlannedStep then = applied(step, set.changes);
    EXPECT_TRUE(fits_by_the_forecast(then, hardware, device_bytes));
    EXPECT_TRUE(options_agree(then));
    EXPECT_EQ(then.tokens(), step.tokens());
    EXPECT_EQ(then.inputs.ranks, step.inputs.ranks);
    EXPECT_EQ(then.attention_pairs, step.attention_pairs);
    EXPECT_EQ(set.cost.device_bytes,
              forecast_of(then, limits_of(then, hardware, device_bytes)).peak_total_bytes);
    EXPECT_DOUBLE_EQ(set.cost.seconds, step_time(then, hardware).seconds);
    for (size_t left_out = 0; left_out < set.changes.size(); ++left_out) {
      std::vector<MemoryChange> fewer = set.changes;
      fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(left_out));
      const PlannedStep less = applied(step, fewer);
      EXPECT_FALSE(options_agree(less) && fits_by_the_forecast(less, hardware, device_bytes))
          << "without " << set.changes[left_out].flags;
    }
    // The last of six may be the fastest of all.
    if (i < 5) {
      EXPECT_GE(set.changes.size(), changes_before);
      changes_before = set.changes.size();
    }
  }
}

TEST(MemoryChanges, every_set_fits_and_needs_each_of_its_changes) {
  const HardwareProfile hardware = gpu_80gb();
  int found = 0;
  for (const int64_t gib : {20, 40, 76})
    for (const int zero : {0, 3})
      for (const Recompute recompute : {Recompute::none, Recompute::keep_attention, Recompute::full})
        for (const int ulysses : {1, 4}) {
          const PlannedStep step = llama_step(262144, ulysses, 8, zero, recompute);
          const MemoryChanges answer =
              find_memory_changes(step, hardware, limits_of(step, hardware, gib << 30));
          SCOPED_TRACE(cat(gib, " GiB, zero ", zero, ", ", name_of(recompute), ", ulysses ", ulysses));
          EXPECT_EQ(answer.fits(), fits_by_the_forecast(step, hardware, gib << 30));
          EXPECT_EQ(answer.fits() || !answer.sets.empty(), !answer.nearest.has_value());
          expect_laws(step, hardware, gib << 30, answer);
          found += static_cast<int>(answer.sets.size());
        }
  EXPECT_GT(found, 50);
}

// One change alone: every fitting one is found, by trying each here.
TEST(MemoryChanges, one_change_that_suffices_comes_before_all_others) {
  const HardwareProfile hardware = gpu_80gb();
  const PlannedStep step = llama_step(262144, 4, 8, 3, Recompute::none);
  std::set<MemoryChangeKind> alone;
  for (const auto& choices : possible_changes(step, hardware, {}))
    for (const MemoryChange& change : choices)
      if (const PlannedStep then = applied(step, {change});
          options_agree(then) && fits_by_the_forecast(then, hardware, kGpuLimit_bytes))
        alone.insert(change.kind);
  ASSERT_FALSE(alone.empty());
  const MemoryChanges answer =
      find_memory_changes(step, hardware, limits_of(step, hardware, kGpuLimit_bytes));
  ASSERT_GE(answer.sets.size(), alone.size());
  for (size_t i = 0; i < alone.size(); ++i) {
    ASSERT_EQ(answer.sets[i].changes.size(), 1u);
    EXPECT_TRUE(alone.contains(answer.sets[i].changes.front().kind));
  }
}

// "Out of memory at 262144, degree 4, on 8 x H100."
TEST(MemoryChanges, the_guides_situation_is_mended_by_a_larger_degree_among_others) {
  const HardwareProfile hardware = gpu_80gb();
  PlannedStep step = llama_step(262144, 4, 8, 1, Recompute::keep_attention);
  step.inputs.micro_batches = 2;
  const MemoryChanges answer =
      find_memory_changes(step, hardware, limits_of(step, hardware, kGpuLimit_bytes));
  ASSERT_FALSE(answer.fits());
  expect_laws(step, hardware, kGpuLimit_bytes, answer);
  const auto degree = std::ranges::find_if(answer.sets, [](const MemoryChangeSet& set) {
    return set.changes.front().kind == MemoryChangeKind::sequence_ranks;
  });
  ASSERT_NE(degree, answer.sets.end());
  EXPECT_EQ(degree->step.inputs.ulysses, 8);
  EXPECT_EQ(degree->step.inputs.micro_batches, 4);
  EXPECT_EQ(degree->changes.front().note, "data-parallel ranks become sequence ranks: degree 4 -> 8");
  EXPECT_NE(degree->flags(step).find("--ulysses 8"), std::string::npos);
  EXPECT_NE(degree->flags(step).find("--gradient_accumulation_steps 4"), std::string::npos);
  const Json patch = degree->deepspeed(step);
  EXPECT_EQ(patch.at("sequence_parallel_size"), 8);
  EXPECT_EQ(patch.at("gradient_accumulation_steps"), 4);
}

TEST(MemoryChanges, have_their_deepspeed_keys_as_a_patch_of_its_file) {
  MemoryChangeSet set;
  set.step = llama_step(65536, 4, 8, 3, Recompute::keep_attention);
  EXPECT_EQ(set.deepspeed(set.step), Json::object()) << "not null";
  PlannedStep before = set.step;
  before.inputs.micro_batches = 1;
  set.step.inputs.micro_batches = 2;
  MemoryChange change;
  change.deepspeed = {{"bf16.bf16_optimizer_states", true},
                      {"zero_optimization.offload_param.device", "nvme"},
                      {"zero_optimization.offload_param.nvme_path", "DIR"}};
  set.changes.push_back(change);
  const Json patch{{"bf16", {{"bf16_optimizer_states", true}}},
                   {"gradient_accumulation_steps", 2},
                   {"zero_optimization", {{"offload_param", {{"device", "nvme"}, {"nvme_path", "DIR"}}}}}};
  EXPECT_EQ(set.deepspeed(before), patch);
}

TEST(MemoryChanges, a_micro_batch_of_one_keeps_the_samples_of_a_step) {
  const HardwareProfile hardware = gpu_80gb();
  PlannedStep step = llama_step(65536, 4, 8, 3, Recompute::keep_attention);
  step.inputs = with_batch(step.inputs, 6, 65536);
  const MemoryChanges answer =
      find_memory_changes(step, hardware, limits_of(step, hardware, int64_t{40} << 30));
  ASSERT_FALSE(answer.sets.empty());
  expect_laws(step, hardware, int64_t{40} << 30, answer);
  EXPECT_TRUE(std::ranges::any_of(answer.sets, [](const MemoryChangeSet& set) {
    return set.changes.front().kind == MemoryChangeKind::batch &&
           set.step.inputs.micro_batches == 6 / set.step.inputs.batch;
  }));
}

TEST(MemoryChanges, the_host_is_a_limit_too_and_a_disk_is_taken_last) {
  HardwareProfile hardware = gpu_80gb();
  PlannedStep step = llama_step(524288, 8, 8, 3, Recompute::keep_attention);
  const int64_t limit = int64_t{36} << 30;
  const auto uses = [&](Offload offload) {
    for (const MemoryChangeSet& set :
         find_memory_changes(step, hardware, limits_of(step, hardware, limit)).sets)
      if (set.step.inputs.offload.activations == offload || set.step.inputs.offload.optimizer == offload)
        return true;
    return false;
  };
  EXPECT_TRUE(uses(Offload::cpu));
  EXPECT_FALSE(uses(Offload::disk));
  hardware.host_memory_bytes = int64_t{4} << 30;
  expect_laws(step, hardware, limit, find_memory_changes(step, hardware, limits_of(step, hardware, limit)));
  EXPECT_FALSE(uses(Offload::cpu));
  // A run that fills the host, with as much on the device as that holds.
  hardware.host_memory_bytes = int64_t{100} << 30;
  step.inputs.offload.activations = Offload::cpu;
  const MemoryChanges answer = find_memory_changes(step, hardware, limits_of(step, hardware, limit));
  EXPECT_LE(answer.cost.device_bytes, limit);
  EXPECT_GT(answer.step.inputs.resident_layers, ResidentLayers{}.resident_layers);
  EXPECT_FALSE(answer.fits());
  ASSERT_FALSE(answer.sets.empty());
  expect_laws(step, hardware, limit, answer);
}

TEST(MemoryChanges, what_a_caller_rules_out_is_in_no_set) {
  const PlannedStep step = llama_step(262144, 4, 8, 0, Recompute::keep_attention);
  const ChangesAllowed none{.disk = false, .optim_state_dtype = false, .update_in_backward = false};
  for (const int64_t gib : {10, 20, 40, 60})
    for (const MemoryChangeSet& set :
         find_memory_changes(step, gpu_80gb(), limits_of(step, gpu_80gb(), gib << 30), none).sets) {
      EXPECT_FALSE(uses_disk(set.step.inputs.offload));
      EXPECT_EQ(set.step.inputs.state_bytes, 4);
      EXPECT_FALSE(set.step.inputs.update_in_backward);
    }
}

TEST(MemoryChanges, of_strict_shares_are_degrees_and_lengths_that_divide) {
  const auto degrees = [](int64_t tokens, bool strict) {
    std::vector<int> all;
    const PlannedStep step = llama_step(tokens, 2, 16, 3, Recompute::full);
    for (const auto& choices : possible_changes(step, gpu_80gb(), {.strict_divisible = strict}))
      for (const MemoryChange& change : choices)
        if (change.kind == MemoryChangeKind::sequence_ranks)
          all.push_back(applied(step, {change}).inputs.ulysses);
    return all;
  };
  using Degrees = std::vector<int>;
  EXPECT_EQ(degrees(262146, false), (Degrees{4, 8, 16}));
  EXPECT_EQ(degrees(262146, true), Degrees{});
  EXPECT_EQ(degrees(262148, true), Degrees{4});
  EXPECT_EQ(degrees(262144, true), (Degrees{4, 8, 16}));
  const PlannedStep step = llama_step(3 << 20, 3, 3, 3, Recompute::full);
  const MemoryChanges answer = find_memory_changes(
      step, gpu_80gb(), limits_of(step, gpu_80gb(), int64_t{8} << 30), {.strict_divisible = true});
  ASSERT_TRUE(answer.nearest);
  EXPECT_EQ(answer.longest_tokens % 3, 0);
}

TEST(MemoryChanges, an_optimizer_that_keeps_nothing_is_not_offloaded) {
  const auto offloads = [](int moments, int64_t tile_bytes) {
    PlannedStep step = llama_step(65536, 1, 8, 2, Recompute::full);
    step.inputs.moments = moments;
    step.inputs.tile_bytes = tile_bytes;
    return std::ranges::any_of(possible_changes(step, gpu_80gb(), {}), [](const auto& choices) {
      return choices.front().kind == MemoryChangeKind::offload_optimizer;
    });
  };
  EXPECT_FALSE(offloads(0, 4)) << "SGD in fp32";
  EXPECT_TRUE(offloads(0, 2)) << "masters";
  EXPECT_TRUE(offloads(2, 4)) << "moments";
}

TEST(MemoryChanges, updates_in_backward_never_meet_accumulation) {
  PlannedStep step = llama_step(262144, 4, 8, 0, Recompute::full);
  for (const int64_t accumulation : {1, 2}) {
    step.inputs.micro_batches = accumulation;
    for (const int64_t gib : {20, 40, 60})
      for (const MemoryChangeSet& set :
           find_memory_changes(step, gpu_80gb(), limits_of(step, gpu_80gb(), gib << 30)).sets)
        EXPECT_TRUE(!set.step.inputs.update_in_backward || set.step.inputs.micro_batches == 1);
  }
}

TEST(MemoryChanges, where_nothing_helps_it_says_what_would) {
  const HardwareProfile hardware = gpu_80gb();
  const int64_t limit = int64_t{8} << 30;
  const PlannedStep step = llama_step(4194304, 8, 8, 3, Recompute::full);
  const MemoryChanges answer = find_memory_changes(step, hardware, limits_of(step, hardware, limit));
  ASSERT_TRUE(answer.sets.empty());
  ASSERT_TRUE(answer.nearest);
  const PlannedStep nearest = applied(step, answer.nearest->changes);
  EXPECT_FALSE(fits_by_the_forecast(nearest, hardware, limit));
  EXPECT_LT(answer.nearest->cost.bytes_too_many(answer.limits), answer.cost.bytes_too_many(answer.limits));
  ASSERT_GT(answer.longest_tokens, 0);
  const auto fits_at = [&](int64_t tokens) {
    PlannedStep shorter = nearest;
    shorter.inputs = with_batch(shorter.inputs, 1, tokens);
    return fits_by_the_forecast(shorter, hardware, limit);
  };
  EXPECT_TRUE(fits_at(answer.longest_tokens));
  EXPECT_FALSE(fits_at(answer.longest_tokens + 1024));
  EXPECT_GT(answer.ranks_needed, 8);
  const std::string text =
      memory_answer_text(explain_memory(step, hardware, limits_of(step, hardware, limit), std::nullopt));
  EXPECT_NE(text.find("No set of changes makes it fit"), std::string::npos) << text;
  EXPECT_NE(text.find(cat("--max_seq_length ", answer.longest_tokens)), std::string::npos) << text;
}

TEST(MemoryChanges, beyond_the_heads_data_parallel_ranks_join_a_ring) {
  const PlannedStep step = llama_step(1048576, 32, 64, 3, Recompute::full);
  const auto kinds = possible_changes(step, gpu_80gb(), {});
  const MemoryChange& change = kinds.front().front();
  ASSERT_EQ(change.kind, MemoryChangeKind::sequence_ranks);
  EXPECT_EQ(change.flags, "--ring 2");
  EXPECT_TRUE(change.deepspeed.empty());  // DeepSpeed has no ring
  EXPECT_EQ(change.trainer, "ParallelismConfig(sp_size=64, sp_ring=2)");
  const PlannedStep then = applied(step, {change});
  EXPECT_EQ(then.sequence_ranks(), 64);
  EXPECT_EQ(then.tokens(), step.tokens());
  EXPECT_LT(memory_forecast(then.inputs).peak_total_bytes, memory_forecast(step.inputs).peak_total_bytes);
}

// 32 heads of 8 key/value heads over three ranks: 11, 11 and 10, and the second has four key/value heads.
TEST(MemoryChanges, more_sequence_ranks_take_what_the_fullest_of_them_takes) {
  PlannedStep step = llama_step(65536, 1, 6, 3, Recompute::none);
  step.inputs = with_sequence_ranks(step.inputs, 1, 2, 0);
  const auto kinds = possible_changes(step, gpu_80gb(), {});
  ASSERT_EQ(kinds.front().front().flags, "--ulysses 3");
  const ForecastInputs then = applied(step, {kinds.front().front()}).inputs;
  int64_t most = 0;
  for (int rank = 0; rank < 6; ++rank)
    most = std::max(most, memory_forecast(with_sequence_ranks(then, 3, 2, rank)).peak_total_bytes);
  EXPECT_GT(most, memory_forecast(with_sequence_ranks(then, 3, 2, 0)).peak_total_bytes);
  EXPECT_EQ(memory_forecast(then).peak_total_bytes, most);
}

TEST(MemoryChanges, a_printed_share_of_layers_is_as_many_layers) {
  for (const int64_t layers : {1, 32, 80, 126, 1000})
    for (int64_t keeping = 1; keeping < layers; ++keeping) {
      const std::string flags = keep_attention_on(keeping, {Recompute::none, 1, 1, layers}).flags;
      const double share = std::stod(flags.substr(flags.rfind(' ')));
      const RecomputePlan plan{Recompute::keep_attention, 1, share, layers};
      ASSERT_EQ(plan.layers_keeping(KeptPart::attention), keeping) << flags;
    }
}

TEST(MemoryChanges, a_cpu_has_no_host_beside_it) {
  HardwareProfile hardware = round_profile(/*is_gpu=*/false);
  const PlannedStep step = small_step(65536, Recompute::none, 2, 1, 2);
  const int64_t now = memory_forecast(step.inputs).peak_total_bytes;
  for (const int64_t limit : {now / 2, now / 4, now / 8}) {
    const MemoryChanges answer = find_memory_changes(step, hardware, limits_of(step, hardware, limit));
    expect_laws(step, hardware, limit, answer);
    for (const MemoryChangeSet& set : answer.sets) {
      EXPECT_NE(set.step.inputs.offload.optimizer, Offload::cpu);
      EXPECT_NE(set.step.inputs.offload.activations, Offload::cpu);
    }
  }
}

}  // namespace
}  // namespace trireme::testing
