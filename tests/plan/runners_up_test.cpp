// Reasons are true: what is said to be slower is, by that share, and what is over is.
#include "trireme/plan/runners_up.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/plan/search.h"

#include "tests/plan/small_request.h"

namespace trireme::runners_up_test {
namespace {

using ::testing::HasSubstr;
using testing::small_request;

constexpr int64_t kMiB = int64_t{1} << 20;

TEST(RunnersUp, are_slower_or_over_and_say_by_how_much) {
  for (const int64_t memory : {80, 120, 400}) {
    const PlanRequest request = small_request(8, 16384, memory * kMiB);
    Search search(request);
    const auto best = search.fastest(8, request.tokens);
    ASSERT_TRUE(best);
    const std::vector<RunnerUp> runners = list_runners_up(request, *best);
    EXPECT_GT(runners.size(), 5);
    bool fitting = true;
    for (const RunnerUp& runner : runners) {
      SCOPED_TRACE(runner.change + ": " + runner.reason);
      EXPECT_FALSE(runner.change.empty());
      const bool fits = make_planned(request, runner.planned.configuration, request.tokens).memory.fits();
      EXPECT_TRUE(fitting || !fits) << "those that fit come first";
      fitting = fits;
      if (fits) {
        EXPECT_GE(runner.planned.seconds_per_token() * (1 + kAsFast), best->seconds_per_token());
        EXPECT_THAT(runner.reason, HasSubstr(runner.slower > 0.0005 ? "slower: " : "as fast"));
        const PlannedMemory &memory = runner.planned.memory, &of_best = best->memory;
        EXPECT_TRUE(runner.change.starts_with("--ulysses") || runner.slower < 0 ||
                    memory.device_bytes < of_best.device_bytes || memory.host_bytes < of_best.host_bytes)
            << "better in nothing";
      } else {
        EXPECT_THAT(runner.reason, HasSubstr(" over "));
      }
    }
  }
}

// One rank whose attention is repeated, beside one that keeps it.
TEST(RunnersUp, name_what_grew_most) {
  const PlanRequest request = small_request(1, 16384, 4096 * kMiB);
  Configuration keeps;
  keeps.tile_tokens = keeps.logits_tile_tokens = 1024;
  keeps.recompute = {Recompute::keep_attention, 1, 1, 4};
  Configuration repeats = keeps;
  repeats.recompute.policy = Recompute::full;
  const Planned best = make_planned(request, keeps, request.tokens);
  const RunnerUp slower =
      compare_with(best, make_planned(request, repeats, request.tokens), request.hardware);
  EXPECT_EQ(slower.change, "--recompute full");
  EXPECT_THAT(slower.reason, HasSubstr("% slower: attention"));

  PlanRequest tight = request;
  tight.hardware.memory_bytes =
      static_cast<int64_t>(static_cast<double>(best.memory.device_bytes) / tight.memory_share) + 1;
  Configuration all = keeps;
  all.recompute.policy = Recompute::none;
  const Planned over = make_planned(tight, all, request.tokens);
  const RunnerUp loses = compare_with(make_planned(tight, keeps, request.tokens), over, request.hardware);
  EXPECT_EQ(loses.change, "--recompute none");
  EXPECT_THAT(loses.reason, HasSubstr("over on each GPU: activations"));
}

TEST(RunnersUp, are_told_by_the_options_whose_values_differ) {
  const PlanRequest request = small_request(1, 16384, 4096 * kMiB);
  const auto planned = [&](const RecomputePlan& recompute) {
    Configuration configuration;
    configuration.tile_tokens = configuration.logits_tile_tokens = 1024;
    configuration.recompute = recompute;
    return make_planned(request, configuration, request.tokens);
  };
  const Planned whole = planned({Recompute::keep_attention, 1, 1, 4});
  const Planned parts = planned({Recompute::keep_attention, 1, 0.5, 4, 0.25, 0.75});
  EXPECT_EQ(
      changed_options_of(whole, parts),
      "--recompute keep_attention --keep_fraction 0.5 --keep_qkv_fraction 0.25 --keep_mlp_fraction 0.75");
  EXPECT_EQ(changed_options_of(parts, whole),
            "--recompute keep_attention --keep_fraction 1 --keep_qkv_fraction 0 --keep_mlp_fraction 0");
  EXPECT_EQ(changed_options_of(whole, planned({Recompute::keep_attention, 2, 0.5, 4})),
            "--recompute keep_attention --keep_fraction 0.5 --checkpoint_every 2");
}

TEST(RunnersUp, offload_no_optimizer_that_keeps_nothing) {
  const auto offloads = [](Precision precision) {
    PlanRequest request = small_request(2, 16384, 4096 * kMiB);
    request.settings.moments = 0;
    request.settings.precision = precision;
    const auto best = Search(request).fastest(2, request.tokens);
    return std::ranges::any_of(list_runners_up(request, *best), [](const RunnerUp& runner) {
      return runner.change.find("--offload_optimizer cpu") != std::string::npos;
    });
  };
  EXPECT_FALSE(offloads(Precision::fp32)) << "SGD";
  EXPECT_TRUE(offloads(Precision::bf16)) << "masters";
}

TEST(RunnersUp, between_machines_is_said_of_groups_that_cross_them) {
  PlanRequest request = small_request(8, 16384, 4096 * kMiB);
  Configuration within;
  within.data_parallel = 2;
  within.ulysses = 4;
  within.tile_tokens = within.logits_tile_tokens = 1024;
  within.recompute.policy = Recompute::none;
  Configuration across = within;
  across.data_parallel = 1;
  across.ulysses = 8;
  const RunnerUp slower = compare_with(make_planned(request, within, request.tokens),
                                       make_planned(request, across, request.tokens), request.hardware);
  EXPECT_THAT(slower.reason, HasSubstr("slower: exchanges of Ulysses between machines"));
}

}  // namespace
}  // namespace trireme::runners_up_test
