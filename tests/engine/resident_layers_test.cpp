// --offload_activations cpu with a host that does not hold all: on the guarded device
// (tests/support/guarded_device.h), by bytes counted, and bit for bit what a run without offload computes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/comm/thread_world.h"
#include "trireme/engine/assemble.h"
#include "trireme/forecast/memory_forecast.h"
#include "trireme/measure/memory_report.h"

#include "tests/engine/tiny_model.h"
#include "tests/support/guarded_device.h"
#include "tests/support/temporary_folder.h"

namespace trireme::resident_layers_on_engine_test {
namespace {

using ::testing::AllOf, ::testing::HasSubstr, ::testing::Not;

constexpr int64_t kLayers = 9, kTokens = 192, kSamples = 1;
constexpr int64_t kOutsideTensors_bytes = int64_t{256} << 20;  // that no budget of a host's memory has

// Of the rank that holds most.
struct TrainedRun {
  std::vector<double> losses;
  MemoryState state;
  ForecastInputs inputs;
  std::string description;
};

class ResidentLayersOnGuardedDevice : public ::testing::Test {
 protected:
  ResidentLayersOnGuardedDevice() {
    Json config = testing::tiny_llama_config();
    config["num_hidden_layers"] = kLayers;
    testing::write_tiny_model(folder_.path(), config);
    options_.device = testing::guarded_device();
    options_.attention = AttentionKernel::reference;
    options_.tile_tokens = 64;
    options_.logits_tile_tokens = 64;
    options_.planned_batch = {.samples = kSamples, .tokens = kTokens};
  }
  TrainedRun train(const EngineOptions& options, int ranks) const {
    TrainedRun run;
    run_ranks_as_threads(ranks, [&](World& world) {
      EngineOptions of_rank = options;
      of_rank.ulysses = ranks;
      const auto engine = assemble(world, folder_.path(), of_rank);
      std::vector<double> losses;
      for (uint64_t step = 0; step < 2; ++step)
        losses.push_back(
            engine
                ->train_step({testing::slice_of_batch(kSamples, kTokens, engine->config().vocab_size, step,
                                                      ranks, world.rank())},
                             1e-3)
                .loss);
      if (world.rank() > 0) return;
      run = {losses, engine->memory_account()->state(), engine->forecast_inputs(kSamples, kTokens),
             engine->description()};
    });
    return run;
  }
  // That leaves each rank `bytes` to plan with.
  static int64_t limit_that_leaves(int64_t bytes, int ranks) {
    return static_cast<int64_t>(static_cast<double>(bytes + kOutsideTensors_bytes) / 0.9 *
                                static_cast<double>(ranks)) +
           ranks;
  }

  testing::TemporaryFolder folder_;
  EngineOptions options_;
};

TEST_F(ResidentLayersOnGuardedDevice, hold_what_the_host_does_not_with_the_bits_of_no_offload) {
  struct Case {
    int ranks;
    Recompute policy;
    int64_t checkpoint_every;
  };
  for (const auto& [ranks, policy, every] :
       {Case{1, Recompute::full, 1}, Case{1, Recompute::keep_attention, 1}, Case{1, Recompute::automatic, 1},
        Case{1, Recompute::full, 2}, Case{1, Recompute::keep_attention, 3},
        Case{2, Recompute::keep_attention, 1}}) {
    EngineOptions options = options_;
    options.recompute.policy = policy;
    options.recompute.checkpoint_every = every;
    const TrainedRun none = train(options, ranks);
    options.offload.activations = Offload::cpu;
    const TrainedRun two = train(options, ranks);
    EXPECT_EQ(two.inputs.resident_layers, 2);
    EXPECT_THAT(two.description, Not(HasSubstr("but those")));
    ForecastInputs wanted = two.inputs;
    wanted.resident_layers = 4;
    const int64_t host_bytes = memory_forecast(wanted).host.total();
    ASSERT_LT(host_bytes, memory_forecast(two.inputs).host.total());
    options.host_memory_limit_bytes = limit_that_leaves(host_bytes, ranks);
    const TrainedRun four = train(options, ranks);
    const MemoryForecast forecast = memory_forecast(four.inputs);
    SCOPED_TRACE(::testing::Message() << four.description << "\n" << memory_report(four.state, forecast));
    EXPECT_EQ(four.inputs.resident_layers, 4);
    EXPECT_THAT(four.description, HasSubstr("activations cpu but those of the last 4 layers"));
    constexpr MemoryCategory kActivations = MemoryCategory::activations;
    EXPECT_EQ(four.state.peak[kActivations], forecast.peak[kActivations]);
    EXPECT_GT(four.state.peak[kActivations], two.state.peak[kActivations]);
    EXPECT_EQ(four.losses, none.losses);
  }
}

// A machine with a small host beside one with a large one.
TEST_F(ResidentLayersOnGuardedDevice, are_each_ranks_own) {
  options_.recompute.policy = Recompute::full;
  options_.offload.activations = Offload::cpu;
  ForecastInputs wanted = train(options_, 2).inputs;
  wanted.resident_layers = 5;
  const int64_t little_bytes = limit_that_leaves(memory_forecast(wanted).host.total(), 2);
  std::vector<int64_t> of_ranks(2);
  run_ranks_as_threads(2, [&](World& world) {
    EngineOptions options = options_;
    options.ulysses = 2;
    if (world.rank() == 1) options.host_memory_limit_bytes = little_bytes;
    const auto engine = assemble(world, folder_.path(), options);
    of_ranks[static_cast<size_t>(world.rank())] = engine->forecast_inputs(kSamples, kTokens).resident_layers;
    EXPECT_EQ(engine->memory_fit().value().most_resident_layers, 5);
    EXPECT_TRUE(engine->memory_fit()->fits());
  });
  EXPECT_EQ(of_ranks, (std::vector<int64_t>{2, 5}));
}

TEST_F(ResidentLayersOnGuardedDevice, that_are_more_than_the_device_holds_are_told_beforehand_of_any_policy) {
  options_.recompute.policy = Recompute::keep_attention;
  options_.offload.optimizer = Offload::cpu;
  options_.host_memory_limit_bytes = limit_that_leaves(1, 2);
  run_ranks_as_threads(2, [&](World& world) {
    EngineOptions options = options_;
    options.ulysses = 2;
    const auto engine = assemble(world, folder_.path(), options);
    const FitOfRanks fit = engine->memory_fit().value();
    EXPECT_FALSE(fit.fits_host());
    EXPECT_THAT(shortage_warning(fit, engine->forecast_inputs(kSamples, kTokens)),
                AllOf(HasSubstr("of the host's memory can be planned with; the run may end"),
                      HasSubstr("--offload_optimizer disk")));
  });
}

TEST_F(ResidentLayersOnGuardedDevice, are_two_without_a_planned_batch) {
  options_.offload.activations = Offload::cpu;
  options_.host_memory_limit_bytes = limit_that_leaves(1, 1);
  options_.planned_batch = {};
  options_.recompute.policy = Recompute::full;
  EXPECT_EQ(train(options_, 1).inputs.resident_layers, 2);
}

}  // namespace
}  // namespace trireme::resident_layers_on_engine_test
