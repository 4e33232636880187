// The search against every configuration that there is, listed here by loops of its own.
#include "trireme/plan/search.h"

#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/device/planned_bytes.h"
#include "trireme/forecast/tile_rules.h"
#include "trireme/plan/plan.h"

#include "tests/plan/small_request.h"

namespace trireme::search_test {
namespace {

using testing::small_request;

constexpr int64_t kMiB = int64_t{1} << 20;

// Of `samples` a step, or one of each group where it is 0.
std::vector<Configuration> every_configuration(const PlanRequest& request, int devices, int64_t tokens) {
  std::vector<Configuration> all;
  Configuration c;
  const int64_t tile = tile_tokens_by_rule(request.model.intermediate, true),
                logits = logits_tile_tokens_by_rule(request.model.vocab, true);
  const int64_t layers = request.model.layers;
  constexpr Offload kOffloads[] = {Offload::none, Offload::cpu};
  for (c.ulysses = 1; c.ulysses <= devices; c.ulysses *= 2)
    for (c.ring = 1; c.ring * c.ulysses <= devices; c.ring *= 2) {
      c.data_parallel = devices / (c.ulysses * c.ring);
      if (c.ulysses > request.model.heads || tokens < c.ulysses * c.ring) continue;
      for (c.zero = 0; c.zero <= 3; ++c.zero)
        for (const Offload parameters : kOffloads)
          for (const Offload optimizer : kOffloads)
            for (const Offload activations : kOffloads)
              for (c.head_chunks = 1; c.head_chunks <= 4; c.head_chunks *= 2)
                for (const int64_t cut : {1, 2})
                  for (c.batch = 1; c.batch <= std::max<int64_t>(1, request.samples_per_step); ++c.batch)
                    for (int64_t every = 1;
                         every == 1 || (activations == Offload::none ? 2 * every * every <= layers
                                                                     : every <= 8 && 4 * every <= layers);
                         ++every)
                      for (int64_t parts = 0; parts <= 3 * layers; ++parts) {
                        if (activations != request.pinned.offload_activations.value_or(activations)) continue;
                        if (parameters != Offload::none && c.zero < 3) continue;
                        if (c.head_chunks > 1 && (c.ulysses == 1 || c.head_chunks > 8 / c.ulysses)) continue;
                        if (parts > layers && (activations != Offload::none || every > 1)) continue;
                        // Attention first, then q, k and v, then what the MLP keeps.
                        const auto kept = [&](int64_t before) {
                          return std::clamp<int64_t>(parts - before * layers, 0, layers);
                        };
                        c.recompute = plan_keeping({kept(0), kept(1), kept(2)}, every, layers);
                        const int64_t of_group = request.samples_per_step / c.data_parallel;
                        if (request.samples_per_step > 0) {
                          if (c.data_parallel * of_group != request.samples_per_step || c.batch > of_group ||
                              of_group % c.batch != 0)
                            continue;
                        }
                        c.accumulation = request.samples_per_step > 0 ? of_group / c.batch : 1;
                        c.offload = {parameters, optimizer, activations};
                        c.tile_tokens = tile / cut;
                        c.logits_tile_tokens = logits / cut;
                        all.push_back(c);
                      }
    }
  return all;
}

// But for what a plainer one may take more (kAsFast).
struct SmallSpace {
  int64_t tokens, memory_bytes, samples;
  int devices;
  int64_t host_bytes = 0;  // 0: small_request's
  int64_t layers = 4;
  bool activations_stay = false;
};

void deepen(PlanRequest& request, int64_t layers) {
  std::vector<int64_t>& units = request.model.unit_elements;
  units.insert(units.begin() + 1, static_cast<size_t>(layers - request.model.layers), units[1]);
  request.attention_pairs = [pairs = request.attention_pairs,
                             times = static_cast<double>(layers) / static_cast<double>(request.model.layers)](
                                int64_t tokens) { return pairs(tokens) * times; };
  request.model.layers = layers;
}

TEST(Search, finds_what_no_fitting_configuration_is_faster_than) {
  std::set<int64_t> groups;
  std::vector<SmallSpace> spaces{
      {65536, 202 * kMiB, 0, 8}};  // where the least times are far from the real ones
  for (const int64_t memory : {30, 60, 90, 150, 400})
    for (const int64_t samples : {0, 4})
      for (const int devices : {1, 4, 8}) spaces.push_back({16384, memory * kMiB, samples, devices});
  // Hosts that do not hold all, behind a slow link: some layers stay.
  for (const int64_t host : {20, 40, 60, 88})
    for (const int64_t memory : {60, 87, 120}) spaces.push_back({8192, memory * kMiB, 0, 4, host * kMiB});
  // Models of more layers, in groups.
  for (const int64_t memory : {100, 130, 160}) spaces.push_back({8192, memory * kMiB, 0, 1, 0, 18, true});
  for (const int64_t memory : {46, 60}) spaces.push_back({8192, memory * kMiB, 0, 4, 0, 8, true});
  for (const int64_t host : {20, 60, 90})
    for (const int64_t memory : {130, 250}) spaces.push_back({8192, memory * kMiB, 0, 1, host * kMiB, 18});
  for (const auto& [tokens, memory, samples, devices, host, layers, activations_stay] : spaces) {
    PlanRequest request = small_request(devices, tokens, memory);
    deepen(request, layers);
    request.samples_per_step = samples;
    if (host > 0) {
      request.hardware.host_memory_bytes = host;
      request.hardware.to_host = {1e-6, 1e7};
      request.pinned.offload_activations = Offload::cpu;
    }
    if (activations_stay) request.pinned.offload_activations = Offload::none;
    SCOPED_TRACE(::testing::Message() << memory / kMiB << " MiB, " << samples << " samples, " << devices
                                      << " devices, " << layers << " layers, of the host " << host / kMiB);
    Search search(request);
    const auto best = search.fastest(devices, tokens);
    double least = 0;
    bool fits = false;
    for (const Configuration& each : every_configuration(request, devices, tokens)) {
      const Planned planned = make_planned(request, each, tokens);
      if (!planned.memory.fits()) continue;
      if (!fits || planned.seconds_per_token() < least) least = planned.seconds_per_token();
      fits = true;
    }
    ASSERT_EQ(best.has_value(), fits);
    if (!fits) continue;
    EXPECT_TRUE(best->memory.fits());
    EXPECT_GE(best->seconds_per_token(), least * (1 - 1e-12));
    EXPECT_LE(best->seconds_per_token(), least * (1 + kAsFast));
    groups.insert(best->configuration.recompute.checkpoint_every);
  }
  EXPECT_THAT(groups, ::testing::IsSupersetOf({1, 2, 3}));
}

// Of a request drawn at random: memories, links and what is pinned.
PlanRequest random_request(std::mt19937& random) {
  const auto pick = [&](auto... values) {
    const std::array all{values...};
    return all[random() % all.size()];
  };
  PlanRequest request = small_request(pick(1, 2, 4), pick(2048, 8192, 16384),
                                      pick(20, 40, 60, 80, 100, 130, 180, 250, 400) * kMiB);
  deepen(request, pick(8, 9, 18, 20));
  request.hardware.host_memory_bytes = pick(10, 20, 40, 60, 90, 150, 400) * kMiB;
  request.hardware.to_host = {1e-6, pick(1e7, 1e8, 1e9, 1e10)};
  PinnedOptions& pinned = request.pinned;
  pinned.head_chunks = 1;
  pinned.zero = request.devices == 1 ? 0 : pick(0, 3);
  pinned.offload_optimizer = pick(Offload::none, Offload::cpu);
  pinned.tile_tokens = 256;
  pinned.logits_tile_tokens = 64;
  switch (pick(0, 1, 2, 3, 4)) {
    case 1:
      pinned.recompute = Recompute::full;
      break;
    case 2:
      pinned.recompute = Recompute::keep_attention;
      break;
    case 3:
      pinned.recompute = Recompute::keep_attention;
      pinned.keep_fraction = pick(0.5, 1.0);
      break;
    case 4:
      pinned.checkpoint_every = pick(1, 2, 3, 5);
      break;
    default:
      break;
  }
  return request;
}

// What is left out of a search, because it cannot fit or not be the fastest, is looked at here.
std::optional<Planned> search_beside_every_position(const PlanRequest& request) {
  Search search(request);
  auto best = search.fastest(request.devices, request.tokens);
  double least = std::numeric_limits<double>::infinity();
  for (const Candidate& candidate : list_candidates(request, request.devices, request.tokens))
    for (int64_t every = candidate.configuration.recompute.checkpoint_every; every <= candidate.most_of_group;
         ++every) {
      const Candidate of_groups = candidate.in_groups(every);
      for (int64_t keeping = of_groups.least_keeping; keeping <= of_groups.most_keeping; ++keeping) {
        const Planned planned = make_planned(request, of_groups.keeping(keeping), request.tokens);
        if (planned.memory.fits()) least = std::min(least, planned.seconds_per_token());
      }
    }
  const bool fits = least < std::numeric_limits<double>::infinity();
  EXPECT_EQ(search.holds(request.devices, request.tokens), fits);
  EXPECT_EQ(best.has_value(), fits);
  if (best) {
    EXPECT_LE(best->seconds_per_token(), least * (1 + kAsFast));
  }
  return best;
}

TEST(Search, leaves_out_no_size_of_groups_that_would_fit_or_be_faster) {
  std::mt19937 random(20);
  int fitting = 0, grouped = 0;
  for (int i = 0; i < 400; ++i) {
    SCOPED_TRACE(::testing::Message() << "request " << i);
    const auto best = search_beside_every_position(random_request(random));
    fitting += best ? 1 : 0;
    grouped += best && best->configuration.recompute.checkpoint_every > 1 ? 1 : 0;
  }
  EXPECT_GT(fitting, 40);
  EXPECT_GT(grouped, 10);
}

// Where activations leave, layers that stay hold less in groups, and less with two outputs of attention
// kept than with none: then the last two layers stay, else the last two inputs of groups.
TEST(Search, finds_groups_that_take_less_of_the_device_though_activations_leave) {
  PlanRequest fraction = small_request(4, 8192, 91 * kMiB + kMiB / 3);
  deepen(fraction, 12);
  fraction.hardware.to_host = {1e-6, 1e9};
  fraction.hardware.within_machine = {1e-6, 1e10};
  fraction.pinned.zero = 0;
  fraction.pinned.offload_optimizer = Offload::cpu;
  fraction.pinned.head_chunks = 2;
  fraction.pinned.tile_tokens = 256;
  fraction.pinned.logits_tile_tokens = 64;
  fraction.pinned.recompute = Recompute::keep_attention;
  fraction.pinned.keep_fraction = 0.5;
  PlanRequest open = small_request(1, 8192, 78 * kMiB);
  deepen(open, 20);
  open.hardware.to_host = {1e-6, 1e9};
  open.hardware.within_machine = {1e-6, 1e10};
  open.pinned.offload_optimizer = Offload::cpu;
  open.pinned.tile_tokens = 256;
  open.pinned.logits_tile_tokens = 64;
  for (const PlanRequest& request : {fraction, open}) {
    const auto best = search_beside_every_position(request);
    ASSERT_TRUE(best);
    EXPECT_GT(best->configuration.recompute.checkpoint_every, 1);
    EXPECT_EQ(best->configuration.offload.activations, Offload::cpu);
  }
}

// A host of which the ranks plan with so many bytes together.
int64_t host_of_plan(int64_t bytes, int64_t ranks) {
  const int64_t of_rank = bytes / ranks + kOutsideOnHost_bytes;
  return ranks * static_cast<int64_t>(std::ceil(static_cast<double>(of_rank) / kPlannedMemoryShare));
}

TEST(Search, a_small_host_shortens_a_sample_only_by_what_both_lack) {
  PlanRequest request = small_request(4, 0, 120 * kMiB);
  request.pinned.offload_activations = Offload::cpu;
  const int64_t much = Search(request).longest(4, kMostLength);
  request.hardware.host_memory_bytes = host_of_plan(60 * kMiB, 4);
  Search search(request);
  const int64_t longest = search.longest(4, kMostLength);
  EXPECT_LT(longest, much);
  const auto best = search.fastest(4, longest);
  ASSERT_TRUE(best);
  EXPECT_TRUE(best->memory.fits());
  EXPECT_GT(best->step.inputs.resident_layers, 2);
  ForecastInputs two = best->step.inputs;
  two.resident_layers = 2;
  EXPECT_GT(memory_forecast(two).host.total() * 4, best->memory.limits.host_bytes);
}

TEST(Search, asks_the_memory_of_few) {
  PlanRequest request = small_request(8, 16384, 90 * kMiB);
  Search search(request);
  ASSERT_TRUE(search.fastest(8, request.tokens));
  EXPECT_GT(search.counts().candidates, 200);
  // Of 13 positions each, of what layers keep.
  EXPECT_LT(search.counts().forecasts, 2 * search.counts().candidates);
}

TEST(Search, the_longest_is_the_longest) {
  for (const int64_t memory : {60, 200}) {
    const PlanRequest request = small_request(4, 0, memory * kMiB);
    Search search(request);
    const int64_t longest = search.longest(4, kMostLength);
    ASSERT_GT(longest, 0);
    EXPECT_EQ(longest % kLengthQuantum, 0);
    ASSERT_TRUE(search.fastest(4, longest));
    for (const Configuration& each : every_configuration(request, 4, longest + kLengthQuantum))
      EXPECT_FALSE(make_planned(request, each, longest + kLengthQuantum).memory.fits())
          << memory << " MiB, ulysses " << each.ulysses << ", ring " << each.ring << ", ZeRO " << each.zero
          << ", groups of " << each.recompute.checkpoint_every << ", "
          << each.recompute.layers_keeping(KeptPart::attention) << " keep attention";
  }
}

TEST(Search, the_longest_has_a_token_for_each_rank_that_has_to_share_it) {
  PlanRequest request = small_request(2048, 0, 200 * kMiB);
  request.samples_per_step = 1;
  EXPECT_EQ(Search(request).shortest(2048), 2048);
  EXPECT_EQ(Search(request).longest(2048, 4096), 4096);
  request.samples_per_step = 0;
  EXPECT_EQ(Search(request).shortest(2048), kLengthQuantum);
  request.pinned.sp = 1536;
  EXPECT_EQ(Search(request).shortest(1536), 2048);
  EXPECT_EQ(Search(request).longest(1536, 2048), 2048);
}

TEST(Search, the_longest_is_divisible_where_it_has_to_be) {
  PlanRequest request = small_request(3, 0, 200 * kMiB);
  request.settings.strict_divisible = true;
  for (const bool all_share : {false, true}) {
    if (all_share)
      request.samples_per_step = 1;
    else
      request.pinned.ulysses = 3;
    Search search(request);
    const int64_t longest = search.longest(3, kMostLength);
    EXPECT_GT(longest, 8 * kLengthQuantum);
    EXPECT_EQ(longest % 6, 0);
    EXPECT_TRUE(search.fastest(3, longest));
    request.pinned.ulysses.reset();
  }
}

TEST(Search, more_devices_never_hold_less) {
  int64_t before = 0;
  for (const int devices : {1, 2, 4, 8, 16}) {
    const PlanRequest request = small_request(devices, 0, 60 * kMiB);
    const int64_t longest = Search(request).longest(devices, kMostLength);
    EXPECT_GE(longest, before) << devices;
    before = longest;
  }
}

TEST(Search, obeys_what_is_pinned) {
  PlanRequest request = small_request(8, 16384, 400 * kMiB);
  request.samples_per_step = 8;
  const auto with = [&](const std::function<void(PinnedOptions&)>& pin) {
    PlanRequest pinned = request;
    pin(pinned.pinned);
    Search search(pinned);
    const auto best = search.fastest(8, request.tokens);
    if (!best) throw std::logic_error("it does not fit");
    return best->configuration;
  };
  EXPECT_EQ(with([](PinnedOptions& p) { p.zero = 2; }).zero, 2);
  EXPECT_EQ(with([](PinnedOptions& p) { p.sp = 4; }).sequence_ranks(), 4);
  EXPECT_EQ(with([](PinnedOptions& p) { p.ulysses = 2; }).ulysses, 2);
  EXPECT_EQ(with([](PinnedOptions& p) { p.ring = 2; }).ring, 2);
  EXPECT_EQ(with([](PinnedOptions& p) { p.recompute = Recompute::full; }).recompute.policy, Recompute::full);
  EXPECT_EQ(with([](PinnedOptions& p) { p.recompute = Recompute::none; }).recompute.policy, Recompute::none);
  EXPECT_EQ(with([](PinnedOptions& p) { p.keep_fraction = 0.5; }).recompute.keep_fraction, 0.5);
  const Configuration parts =
      with([](PinnedOptions& p) { p.keep_qkv_fraction = 1, p.keep_mlp_fraction = 0.25; });
  EXPECT_EQ(parts.recompute, plan_keeping({4, 4, 1}, 1, 4));
  EXPECT_EQ(with([](PinnedOptions& p) { p.ulysses = 2, p.head_chunks = 4; }).head_chunks, 4);
  EXPECT_EQ(with([](PinnedOptions& p) { p.tile_tokens = 100; }).tile_tokens, 100);
  EXPECT_EQ(with([](PinnedOptions& p) { p.logits_tile_tokens = 100; }).logits_tile_tokens, 100);
  EXPECT_EQ(with([](PinnedOptions& p) { p.sp = 8, p.batch = 2; }).accumulation, 4);
  EXPECT_EQ(with([](PinnedOptions& p) { p.sp = 8, p.accumulation = 2; }).batch, 4);
  EXPECT_EQ(with([](PinnedOptions& p) { p.offload_optimizer = Offload::cpu; }).offload.optimizer,
            Offload::cpu);
  EXPECT_EQ(with([](PinnedOptions& p) { p.offload_activations = Offload::cpu; }).offload.activations,
            Offload::cpu);
  EXPECT_EQ(with([](PinnedOptions& p) { p.offload_parameters = Offload::cpu; }).offload.parameters,
            Offload::cpu);
}

TEST(Search, a_machines_host_is_shared_by_the_ranks_of_a_plan_whatever_number_was_asked_about) {
  PlanRequest request = small_request(1, 4096, 1 << 30);
  request.hardware.host_memory_bytes = int64_t{8} << 30;
  Configuration one_rank;
  one_rank.tile_tokens = one_rank.logits_tile_tokens = 1024;
  const auto limit = [&](int devices) {
    request.devices = devices;
    return make_planned(request, one_rank, 4096).memory.limits.host_bytes;
  };
  EXPECT_EQ(limit(1), planned_bytes(request.hardware.host_memory_bytes, 1, kOutsideOnHost_bytes));
  EXPECT_EQ(limit(4), limit(1));
}

// With memories that the configuration on disk fills exactly.
TEST(Search, a_disk_is_used_where_it_is_allowed_alone) {
  PlanRequest request = small_request(1, 4096, 1 << 30);
  request.memory_share = 1;
  request.hardware.disk_read = request.hardware.disk_write = {1e-4, 1e9};
  Configuration on_disk;
  on_disk.zero = 3;
  on_disk.offload = {Offload::disk, Offload::disk, Offload::disk};
  on_disk.tile_tokens = on_disk.logits_tile_tokens = 1024;
  const PlannedMemory memory = make_planned(request, on_disk, 4096).memory;
  request.pinned.tile_tokens = request.pinned.logits_tile_tokens = 1024;
  request.hardware.memory_bytes = memory.device_bytes;
  request.hardware.host_memory_bytes = host_of_plan(memory.host_bytes, 1);
  EXPECT_FALSE(Search(request).fastest(1, 4096));
  request.allow_disk = true;
  Search search(request);
  const auto best = search.fastest(1, 4096);
  ASSERT_TRUE(best);
  EXPECT_TRUE(uses_disk(best->step.inputs.offload));
}

}  // namespace
}  // namespace trireme::search_test
