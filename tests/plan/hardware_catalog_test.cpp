// Built-in profiles are whole, say where each figure is from, and give back what is known of an 8B model's
// step.
#include "trireme/plan/hardware_catalog.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/plan/step_time.h"
#include "trireme/plan/token_operation_bytes.h"

#include "tests/plan/llama_3_8b.h"
#include "tests/support/error_message.h"

namespace trireme::testing {
namespace {

using ::testing::HasSubstr;

TEST(HardwareCatalog, every_figure_of_a_profile_has_a_source) {
  for (const HardwareProfile& profile : hardware_catalog()) {
    std::set<std::string> expected;
    const Json json = to_json(profile);
    for (const auto& [key, value] : json.items())
      if (value.is_number() || (value.is_object() && !key.starts_with("rates_"))) expected.insert(key);
    expected.erase("threads");  // a CPU's
    for (const auto& [kind, name] : enum_names(WorkKind{})) {
      expected.insert(name);
      expected.insert(std::string(name) + "_32_bit");
    }
    std::set<std::string> given;
    for (const FigureSource& source : profile.sources) {
      EXPECT_TRUE(given.insert(source.figure).second) << profile.name << " twice: " << source.figure;
      EXPECT_GT(source.source.size(), 10U) << profile.name << ": " << source.figure;
    }
    EXPECT_EQ(given, expected) << profile.name;
  }
}

TEST(HardwareCatalog, every_profile_has_every_rate_and_is_what_its_json_says) {
  for (const HardwareProfile& profile : hardware_catalog()) {
    const Json json = to_json(profile);
    EXPECT_EQ(to_json(hardware_profile_from_json(json, profile.name)), json);
    for (const LinkSpeed& link : {profile.within_machine, profile.across_machines, profile.to_host,
                                  profile.disk_read, profile.disk_write})
      EXPECT_GT(link.bytes_per_second, 0) << profile.name;
    EXPECT_GT(profile.host_optimizer_per_second, 0);
  }
}

// A kernel that ran faster than its units or its memory would be a slip of the pen.
TEST(HardwareCatalog, no_rate_is_above_the_peak) {
  for (const HardwareProfile& profile : hardware_catalog())
    for (const int64_t bytes : {2, 4})
      for (const auto& [kind, table] : profile.rates(bytes))
        for (const RatePoint& point : table.points)
          EXPECT_LT(point.per_second, bytes == 2 ? profile.peak_flops_16_bit : profile.peak_flops_32_bit)
              << profile.name << " " << name_of(kind);
}

TEST(HardwareCatalog, token_operations_move_their_operands_at_least_once) {
  const std::map<WorkKind, double> least_values = {{WorkKind::norm, 2},
                                                   {WorkKind::norm_backward, 4},
                                                   {WorkKind::rotation, 2},
                                                   {WorkKind::activation, 3},
                                                   {WorkKind::activation_backward, 6},
                                                   {WorkKind::cross_entropy, 2},
                                                   {WorkKind::embedding, 2},
                                                   {WorkKind::copy, 2},
                                                   {WorkKind::optimizer, 7}};
  for (const TokenOperationBytes& operation : kTokenOperationBytes) {
    EXPECT_GE(operation.of_2_byte_values, 2 * least_values.at(operation.kind)) << name_of(operation.kind);
    EXPECT_GE(operation.of_4_byte_values, 4 * least_values.at(operation.kind)) << name_of(operation.kind);
  }
}

TEST(FindHardware, takes_the_usual_spellings) {
  for (const auto& [written, name] :
       std::initializer_list<std::pair<const char*, const char*>>{{"h100-80gb", "h100-80gb"},
                                                                  {"H100-80", "h100-80gb"},
                                                                  {"h100", "h100-80gb"},
                                                                  {"A100-40", "a100-40gb"},
                                                                  {"a100_80gb", "a100-80gb"},
                                                                  {"H200", "h200-141gb"},
                                                                  {"B200", "b200-180gb"},
                                                                  {"NVIDIA A100-SXM4-80GB", "a100-80gb"},
                                                                  {"NVIDIA H100 80GB HBM3", "h100-80gb"}})
    EXPECT_EQ(find_hardware(written).name, name) << written;
}

std::string refusal(const std::string& name) {
  return message_of<ConfigError>([&] { find_hardware(name); });
}

TEST(FindHardware, names_what_is_near_and_all_there_are) {
  EXPECT_THAT(refusal("h10-80gb"), HasSubstr("did you mean 'h100-80gb'?"));
  EXPECT_THAT(refusal("rtx4090"), HasSubstr("a100-40gb, a100-80gb, h100-80gb, h200-141gb, b200-180gb"));
  EXPECT_THAT(refusal("H100 PCIe"), HasSubstr("h100-80gb"));
  EXPECT_THAT(refusal("a100"), HasSubstr("a100-40gb or a100-80gb"));
  for (const char* name : {"", "h"}) EXPECT_THROW(find_hardware(name), ConfigError) << name;
}

struct KnownStep {
  int64_t tokens;
  int ranks;
  double seconds;
};

// Estimates by counting what the code issues at an H200's rates, before there was a planner, with the
// token-wise operations in kernels of their own and the head's in one; of a rank.
TEST(H200, an_8b_step_takes_what_was_estimated_within_a_fifth) {
  const HardwareProfile& h200 = find_hardware("h200");
  for (const KnownStep& known : std::initializer_list<KnownStep>{{8 << 10, 1, 0.86},
                                                                 {32 << 10, 1, 4.6},
                                                                 {128 << 10, 1, 39.5},
                                                                 {32 << 10, 8, 0.64},
                                                                 {128 << 10, 8, 5.2},
                                                                 {1 << 20, 8, 245}}) {
    const StepTime time = step_time(llama_step(known.tokens, known.ranks, known.ranks,
                                               known.ranks > 1 ? 3 : 0, Recompute::keep_attention),
                                    h200);
    EXPECT_NEAR(time.seconds / known.seconds, 1, 0.2)
        << known.tokens << " tokens, " << known.ranks << " ranks";
    EXPECT_GT(time.mfu, 0.3) << known.tokens;
    // Attention alone as MFU counts, 664 TFLOP/s forward and 615 backward (2026-11-27-gpu-flash4.md).
    // Products run 8 / 6 times, for attention's output alone is kept, and reach no more here.
    EXPECT_LT(time.mfu, 3 / (1 / 664.0 + 2.5 / 615) / 989) << known.tokens;
  }
}

TEST(HardwareCatalog, newer_devices_are_faster) {
  double last = 1e9;
  for (const char* name : {"a100-80gb", "h100-80gb", "h200-141gb", "b200-180gb"}) {
    const double seconds =
        step_time(llama_step(64 << 10, 8, 8, 3, Recompute::keep_attention), find_hardware(name)).seconds;
    EXPECT_LT(seconds, last) << name;
    last = seconds;
  }
}

}  // namespace
}  // namespace trireme::testing
