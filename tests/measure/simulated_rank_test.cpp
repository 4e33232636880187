// One rank of several, from one device: what is measured is a real rank's, what is modelled is the planner's,
// and the sum says which is which.
#include "trireme/measure/simulated_rank.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/comm/thread_world.h"
#include "trireme/engine/assemble.h"
#include "trireme/plan/hardware_catalog.h"

#include "tests/engine/tiny_model.h"

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr StepRateOptions kSteps{
    .sequence_tokens = 64, .batch = 2, .steps = 3, .warmup = 1, .matmul_seconds = 0.01};

EngineOptions two_by_two() {
  EngineOptions options;
  options.ulysses = 2;
  options.zero = ZeroStage::parameters;
  return options;
}

// With links of both kinds, of which four ranks use those of a machine.
HardwareProfile processor() {
  HardwareProfile profile = find_hardware("h100-80gb");
  profile.name = "a processor";
  profile.is_gpu = false;
  profile.threads = at::get_num_threads();
  profile.within_machine = {1e-3, 1e6};
  return profile;
}

class SimulatedRankTest : public ::testing::Test {
 protected:
  SimulatedRankTest() { testing::write_tiny_model(folder_.path(), testing::tiny_llama_config(), 0.05); }
  SimulatedRank measure(const std::optional<HardwareProfile>& hardware) const {
    SimulatedWorld world(4, 4, BackendLibrary::post_board, std::chrono::seconds(10));
    const auto engine = assemble(world, folder_.path(), two_by_two());
    return measure_simulated_rank(world, *engine, kSteps, hardware);
  }
  testing::TemporaryFolder folder_;
};

TEST_F(SimulatedRankTest, adds_the_models_network_to_measured_compute) {
  const SimulatedRank rank = measure(processor());
  EXPECT_GT(rank.compute_seconds, 0);
  EXPECT_GT(rank.copy_seconds, 0);
  EXPECT_EQ(rank.tokens, 2.0 * 2 * 64);
  // On a CPU nothing is hidden: calls x latency + bytes / bandwidth of what goes between ranks. Nothing is
  // offloaded, so all traffic does.
  double by_hand = 0;
  for (const TrafficItem& item : [&] {
         SimulatedWorld world(4, 4, BackendLibrary::post_board, std::chrono::seconds(10));
         return step_work(planned_step_of(*assemble(world, folder_.path(), two_by_two()), 2, 64)).traffic;
       }())
    by_hand += item.calls * 1e-3 + item.bytes / 1e6;
  EXPECT_GT(by_hand, 0);
  EXPECT_NEAR(*rank.network_seconds(), by_hand, 1e-9 * by_hand);
  EXPECT_DOUBLE_EQ(*rank.step_seconds(), rank.compute_seconds + *rank.network_seconds());
}

TEST_F(SimulatedRankTest, sends_the_bytes_of_a_real_run) {
  StepRate real;
  run_ranks_as_threads(4, [&](World& world) {
    const StepRate rate = measure_step_rate(*assemble(world, folder_.path(), two_by_two()), kSteps);
    if (world.rank() == 0) real = rate;
  });
  EXPECT_EQ(measure(std::nullopt).sent_bytes, real.sent_bytes);
}

TEST_F(SimulatedRankTest, says_what_is_measured_what_is_modelled_and_no_loss) {
  const SimulatedRank with = measure(processor()), without = measure(std::nullopt);
  EXPECT_THAT(with.text(), AllOf(HasSubstr("rank 0 of 4 ranks"), HasSubstr("measured on this device"),
                                 HasSubstr("modelled by the links of a processor"),
                                 HasSubstr("ulysses: waits"), HasSubstr("gathered_parameters: waits"),
                                 HasSubstr("not shown     loss"), HasSubstr("own peak")));
  EXPECT_FALSE(without.step_seconds());
  EXPECT_THAT(without.text(),
              AllOf(HasSubstr("network       not known: --predict"), Not(HasSubstr("tokens/s"))));
  const Json json = with.to_json();
  EXPECT_EQ(json["measured"]["peak_bytes"], with.memory.peak_total_bytes);
  EXPECT_TRUE(json.contains("measured_and_modelled"));
  EXPECT_THAT(json.dump(), Not(HasSubstr("loss")));
  EXPECT_FALSE(without.to_json().contains("modelled"));
}

TEST_F(SimulatedRankTest, refuses_a_profile_of_another_kind_of_device_or_without_the_link) {
  EXPECT_THROW(measure(find_hardware("h100-80gb")), ConfigError);
  HardwareProfile small = processor();
  small.devices_per_machine = 2;
  small.across_machines = {};
  EXPECT_THROW(measure(small), ConfigError);
}

}  // namespace
}  // namespace trireme
