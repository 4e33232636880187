// A binary of its own: it makes the caching allocator, which counts bytes, libtorch's for the whole process.
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/comm/thread_world.h"
#include "trireme/device/cpu_caching_allocator.h"
#include "trireme/forecast/sequence_ranks.h"
#include "trireme/forecast/store_bytes.h"
#include "trireme/model/model_layout.h"
#include "trireme/train/dry_run.h"

#include "tests/support/error_message.h"
#include "tests/support/without_onednn.h"
#include "tests/train/tiny_run.h"

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(RunMemory, of_each_record_is_what_the_tensors_took) {
  install_cpu_caching_allocator();
  const testing::TinyRun run;
  TrainOptions options = run.options("run");
  options.context_stages = "16:2";
  testing::train_on_ranks(1, options);
  const auto parameters =
      static_cast<double>(make_model_layout(read_model_config(run.model())).parameter_count()) *
      sizeof(float);
  const std::vector<Json> records = testing::metrics_of(options);
  for (const Json& record : records) {
    const Json& memory = record["memory"];
    for (const auto& [category, factor] : {std::pair("parameters", 1), {"gradients", 1}, {"optimizer", 2}}) {
      EXPECT_GE(memory[category].get<double>(), factor * parameters) << category;
      EXPECT_LE(memory[category].get<double>(), 1.5 * factor * parameters) << category;
    }
    EXPECT_GT(memory["activations"].get<double>(), 0);
    EXPECT_GT(record["memory_bytes"].get<double>(), 4 * parameters);
  }
  EXPECT_EQ(records.size(), 2U);
}

TEST(RunMemory, of_a_save_in_the_background_is_what_the_forecast_says) {
  install_cpu_caching_allocator();
  const testing::TinyRun run;
  TrainOptions options = run.options("run");
  options.context_stages = "16:4";
  options.save_steps = 2;
  options.engine.save_in_background = true;
  testing::train_on_ranks(2, options);
  ForecastInputs inputs;
  for (const UnitSpec& unit : make_model_layout(read_model_config(run.model())).units)
    inputs.model.unit_elements.push_back(unit.elements);
  inputs = with_ranks(inputs, 2, 0);
  inputs.save_in_background = true;
  for (const Json& record : testing::metrics_of(options))
    EXPECT_EQ(record["memory"]["snapshot"], record["step"] > 2 ? snapshot_bytes(inputs) : 0)
        << record["step"];
}

// Beside the run that it stands for, at the same length.
TEST(RunMemory, of_a_dry_run_is_that_of_the_run_and_within_its_forecast) {
  install_cpu_caching_allocator();
  const testing::TinyRun run(30'000);
  Json config = testing::tiny_llama_config();
  config["max_position_embeddings"] = 4096;
  std::filesystem::remove_all(run.model());
  testing::write_tiny_model(run.model(), config);
  struct Case {
    const char* name;
    int ranks;
    std::function<void(TrainOptions&)> change;
  };
  const std::vector<Case> cases{
      {"plain", 1, [](auto&) {}},
      {"concat", 1, [](auto& o) { o.samples.packing.kind = Packing::concat; }},
      {"ulysses", 2,
       [](auto& o) {
         o.engine.ulysses = 2;
         o.engine.zero = ZeroStage::parameters;
         o.engine.recompute.policy = Recompute::full;
       }},
      {"ring", 2, [](auto& o) { o.engine.ring = 2; }},
      {"bf16", 1, [](auto& o) { o.engine.precision = Precision::bf16; }},
  };
  for (const Case& one : cases) {
    TrainOptions options = run.options(one.name);
    options.context_stages = "64:1,2k:2";
    options.warmup_ratio = 0;
    one.change(options);
    std::optional<testing::WithoutOneDnn> products_without_workspace;
    if (options.engine.precision == Precision::fp32) products_without_workspace.emplace();
    const auto real = testing::train_on_ranks(one.ranks, options).records.at(3).peak_memory;
    options.output_dir = run.folder() / "none";
    DryRun shown;
    run_ranks_as_threads(one.ranks, [&](World& world) {
      const DryRun of_rank = dry_run(world, options);
      if (world.rank() == 0) shown = of_rank;
    });
    for (const MemoryCategory category : kAllMemoryCategories)
      EXPECT_EQ(shown.peak[category], real[category]) << one.name << ": " << name_of(category);
    ASSERT_EQ(shown.ranks.size(), one.ranks);
    // A choice by what is free fills it.
    EXPECT_EQ(shown.allowed_share, options.engine.recompute.policy == Recompute::automatic ? 0.9 : 0.75)
        << one.name;
    for (const DryRun::Rank& rank : shown.ranks) {
      EXPECT_GT(rank.tensors_bytes, 0) << one.name;
      EXPECT_LE(static_cast<double>(rank.tensors_bytes), 1.01 * static_cast<double>(rank.forecast_bytes))
          << one.name;
    }
    EXPECT_FALSE(std::filesystem::exists(options.output_dir)) << one.name;
  }
}

TEST(RunMemory, that_does_not_suffice_ends_a_dry_run_with_advice) {
  install_cpu_caching_allocator();
  const testing::TinyRun run;
  TrainOptions options = run.options("none");
  options.context_stages = "64k:8";
  constexpr int64_t kLimit_bytes = int64_t{64} << 20;
  limit_host_memory(kLimit_bytes);
  const std::string problem = testing::message_of<ConfigError>(
      [&] { run_ranks_as_threads(1, [&](World& world) { dry_run(world, options); }); });
  limit_host_memory(0);
  EXPECT_THAT(problem, AllOf(HasSubstr("out of host memory"), HasSubstr("What would help")));
  EXPECT_FALSE(std::filesystem::exists(options.output_dir));
}

TEST(RunMemory, is_shown_with_every_key_where_another_kernel_than_flash_attention_serves_a_gpu) {
  ModelConfig config;
  config.num_attention_heads = config.num_key_value_heads = 8;
  config.head_dim = 256;
  EngineOptions options;
  const auto every_key = [&] { return nearest_keys_of_dry_run(options, config) == 0; };
  EXPECT_FALSE(every_key()) << "the CPU";
  options.device = at::kCUDA;
  EXPECT_TRUE(every_key()) << "fp32";
  options.precision = Precision::bf16;
  using enum AttentionKernel;
  for (const AttentionKernel kernel : {flash, cudnn_packed, flash4, cudnn, tiles, reference, automatic}) {
    options.attention = kernel;
    EXPECT_EQ(every_key(), kernel != flash && kernel != cudnn_packed && kernel != automatic)
        << name_of(kernel);
  }
  config.score_cap = 50;
  EXPECT_TRUE(every_key()) << "capped scores";
  config.score_cap = 0;
  config.full_heads = config.heads();
  config.full_heads->width = 512;
  EXPECT_TRUE(every_key()) << "heads 512 wide in layers without a window";
  options.device = at::kCPU;
  EXPECT_FALSE(every_key());
}

}  // namespace
}  // namespace trireme
