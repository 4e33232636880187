// The flags of a recompute plan lead to it from every other one.
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/forecast/memory_options.h"

#include "tests/forecast/llama_3_8b.h"

namespace trireme::recompute_flags_test {
namespace {

using enum Recompute;
using ::testing::Contains;

constexpr int64_t kFlagLayers = 32;

// A run with the policy and shares of `plan` that is given `flags` too.
RecomputePlan given(RecomputePlan plan, const std::string& flags) {
  std::istringstream words(flags);
  for (std::string option, value; words >> option >> value;) {
    if (option == "--recompute")
      for (const auto& [policy, name] : enum_names(Recompute{}))
        if (value == name) plan.policy = policy;
    for (const auto& [name, share] : kKeptShareOptions)
      if (option == cat("--", name)) plan.*share = std::stod(value);
  }
  return plan;
}

std::vector<RecomputePlan> plans() {
  std::vector<RecomputePlan> all;
  for (const Recompute policy : {full, keep_attention, none})
    for (const double attention : {0.0, 13.0 / 32, 1.0})
      for (const double parts : {0.0, 7.0 / 32, 1.0}) {
        if (policy == full && attention < 1) continue;
        if (policy != keep_attention && parts > 0) continue;
        all.push_back({policy, 1, attention, kFlagLayers, parts, parts});
      }
  return all;
}

TEST(RecomputeFlags, lead_from_any_plan_to_any_other) {
  for (const RecomputePlan& before : plans())
    for (const RecomputePlan& then : plans()) {
      const std::string flags = recompute_flags(before, then);
      SCOPED_TRACE(before.description() + " -> " + flags);
      // What `auto` chose is in no option of the run.
      for (const RecomputePlan& run : {before, RecomputePlan{automatic, 1, 1, kFlagLayers}}) {
        const RecomputePlan reached = given(run, flags);
        ASSERT_EQ(reached.policy, then.policy);
        for (const KeptPart part : kAllKeptParts)
          EXPECT_EQ(reached.layers_keeping(part), then.layers_keeping(part)) << name_of(part);
        // Train refuses shares that a policy does not have.
        EXPECT_TRUE(then.policy != full || reached.keep_fraction == 1);
        EXPECT_TRUE(then.policy == keep_attention ||
                    reached.keep_qkv_fraction + reached.keep_mlp_fraction == 0);
      }
    }
}

TEST(RecomputeFlags, of_an_out_of_memory_error_leave_no_share_in_force_that_it_does_not_mean) {
  const auto advice = [](const RecomputePlan& plan) {
    ForecastInputs inputs = forecast_test::llama_3_8b(131072);
    inputs.recompute = plan;
    std::vector<std::string> options;
    for (const MemoryOption& option : memory_options(inputs)) options.push_back(option.option);
    return options;
  };
  const auto parts = advice({keep_attention, 1, 0.75, kFlagLayers, 1, 0.5});
  EXPECT_THAT(parts, Contains("--recompute keep_attention --keep_fraction 1 --keep_qkv_fraction 0 "
                              "--keep_mlp_fraction 0"));
  EXPECT_THAT(parts,
              Contains("--recompute full --keep_fraction 1 --keep_qkv_fraction 0 --keep_mlp_fraction 0"));
  EXPECT_THAT(advice({keep_attention, 1, 0.75, kFlagLayers}), Contains("--recompute full --keep_fraction 1"));
  EXPECT_THAT(advice({none, 1, 1, kFlagLayers}), Contains("--recompute keep_attention"));
}

}  // namespace
}  // namespace trireme::recompute_flags_test
