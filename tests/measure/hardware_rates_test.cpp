// A measured profile: every rank has the same, a planned step is what the engine counts, and predictions read
// the engine's memory.
#include "trireme/measure/hardware_rates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/comm/thread_world.h"
#include "trireme/engine/assemble.h"
#include "trireme/measure/planned_step.h"
#include "trireme/measure/step_rate.h"
#include "trireme/plan/hardware_catalog.h"

#include "tests/engine/tiny_model.h"
#include "tests/plan/planned_step.h"

namespace trireme {
namespace {

using ::testing::Contains;
using ::testing::Not;

TEST(MeasureHardware, every_rank_gets_the_slowest_ranks_profile) {
  std::vector<Json> profiles(2);
  run_ranks_as_threads(2, [&](World& world) {
    profiles.at(static_cast<size_t>(world.rank())) =
        to_json(measure_hardware(world, at::kCPU, {.seconds = 0.05}));
  });
  for (const char* key : {"rates_16_bit", "rates_32_bit", "within_machine"})
    EXPECT_EQ(profiles[0][key], profiles[1][key]) << key;
  EXPECT_GT(profiles[0]["peak_flops_32_bit"].get<double>(), 1e9);
  std::vector<std::string> figures;
  for (const Json& source : profiles[0].at("sources"))
    figures.push_back(source.at("figure").get<std::string>());
  EXPECT_THAT(figures, Contains("within_machine"));
  for (const char* not_measured : {"across_machines", "to_host", "disk_read", "disk_write"})
    EXPECT_THAT(figures, Not(Contains(not_measured)));
}

TEST(MeasureHardware, a_cpus_peak_is_no_less_than_any_of_its_rates) {
  run_ranks_as_threads(1, [&](World& world) {
    const HardwareProfile profile = measure_hardware(world, at::kCPU, {.seconds = 0.05});
    for (const WorkKind kind : {WorkKind::matmul, WorkKind::weight_gradient, WorkKind::head_matmul,
                                WorkKind::attention_forward, WorkKind::attention_backward}) {
      for (const RatePoint& point : profile.rates_32_bit.at(kind).points)
        EXPECT_GE(profile.peak_flops_32_bit, point.per_second) << name_of(kind);
      for (const RatePoint& point : profile.rates_16_bit.at(kind).points)
        EXPECT_GE(profile.peak_flops_16_bit, point.per_second) << name_of(kind);
    }
  });
}

// The engine counts model FLOPs from its batch; the planner from sizes.
TEST(PlannedStep, has_the_model_flops_that_the_engine_counts) {
  testing::TemporaryFolder folder;
  testing::write_tiny_model(folder.path(), testing::tiny_llama_config(), 0.05);
  const StepRateOptions options{
      .sequence_tokens = 256, .batch = 3, .steps = 2, .warmup = 1, .matmul_seconds = 0.01};
  for (const int ranks : {1, 2})
    for (const int64_t block_tokens : {0, 64})  // dense, and each block sees itself alone
      run_ranks_as_threads(ranks, [&](World& world) {
        EngineOptions engine_options;
        engine_options.ulysses = ranks;
        engine_options.sparse.block_tokens = block_tokens;
        const auto engine = assemble(world, folder.path(), engine_options);
        const StepRate rate = measure_step_rate(*engine, options);
        const PlannedStep step = planned_step_of(*engine, options.batch, options.sequence_tokens);
        EXPECT_NEAR(step.model_flops() / rate.model_flops_per_step, 1, 1e-9) << block_tokens;
        EXPECT_EQ(step.tokens(), 3 * 256);
      });
}

TEST(PlannedStep, of_lora_has_the_model_flops_that_the_engine_counts) {
  const StepRateOptions options{.sequence_tokens = 64, .steps = 2, .warmup = 1, .matmul_seconds = 0.01};
  for (const Json& config :
       {testing::tiny_llama_config(), testing::tiny_qwen3_5_config(), testing::tiny_gemma3_config()})
    for (const char* whole : {"", "norm", "embed_tokens,norm"}) {
      testing::TemporaryFolder folder;
      testing::write_tiny_model(folder.path(), config, 0.05);
      run_ranks_as_threads(1, [&](World& world) {
        EngineOptions engine_options;
        engine_options.lora.rank = 3;
        engine_options.lora.modules_to_save = whole;
        const auto engine = assemble(world, folder.path(), engine_options);
        const StepRate rate = measure_step_rate(*engine, options);
        const PlannedStep step = planned_step_of(*engine, 1, options.sequence_tokens);
        EXPECT_NEAR(step.model_flops() / rate.model_flops_per_step, 1, 1e-9) << config["model_type"] << whole;
      });
    }
}

TEST(PredictStep, puts_the_forecast_beside_the_engines_peak) {
  testing::TemporaryFolder folder;
  testing::write_tiny_model(folder.path(), testing::tiny_llama_config(), 0.05);
  const StepRateOptions options{.sequence_tokens = 64, .steps = 2, .warmup = 1, .matmul_seconds = 0.01};
  const HardwareProfile cpu = testing::round_profile(/*is_gpu=*/false);
  run_ranks_as_threads(2, [&](World& world) {
    const auto engine = assemble(world, folder.path(), {});
    measure_step_rate(*engine, options);
    EXPECT_THROW(predict_step(*engine, find_hardware("h100"), 1, options.sequence_tokens), ConfigError);
    const PredictedStep predicted = predict_step(*engine, cpu, 1, options.sequence_tokens);
    EXPECT_GT(predicted.time.seconds, 0);
    EXPECT_GT(predicted.forecast_bytes, 0);
    EXPECT_EQ(predicted.to_json()["forecast_bytes"], predicted.forecast_bytes);
  });
}

}  // namespace
}  // namespace trireme
