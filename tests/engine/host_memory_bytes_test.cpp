// What lies on the host beside a GPU, by the formulas, against counts made another way. In the binary that
// counts memory.
#include <algorithm>

#include <gtest/gtest.h>

#include "trireme/base/sum_of.h"
#include "trireme/comm/mesh.h"
#include "trireme/comm/thread_world.h"
#include "trireme/device/cpu_caching_allocator.h"
#include "trireme/device/memory_account.h"
#include "trireme/engine/make_forecast_inputs.h"
#include "trireme/engine/unit_order.h"
#include "trireme/forecast/memory_forecast.h"
#include "trireme/forecast/memory_options.h"
#include "trireme/forecast/sequence_ranks.h"
#include "trireme/forecast/store_bytes.h"
#include "trireme/memory/make_activation_store.h"

#include "tests/support/change_master.h"
#include "tests/support/pinned_ranges.h"
#include "tests/support/temporary_folder.h"

namespace trireme {
namespace {

using enum MemoryCategory;

constexpr int64_t kLayers = 7, kHidden = 256, kHeads = 8, kWidth = 32, kTokens = 1000;

// One rank with a GPU, fp32.
ForecastInputs gpu_inputs() {
  ForecastInputs inputs;
  ModelConfig config;
  config.family = model_families().front();
  config.num_hidden_layers = kLayers;
  config.hidden_size = kHidden;
  config.intermediate_size = 704;
  config.num_attention_heads = kHeads;
  config.num_key_value_heads = 2;
  config.head_dim = kWidth;
  config.vocab_size = 1000;
  inputs.model = model_sizes(config, make_model_layout(config));
  inputs.rank_heads = kHeads;
  inputs.rank_kv_heads = 2;
  inputs.packed_heads = kHeads + 4;
  inputs.tile_tokens = 512;
  inputs.logits_tile_tokens = 256;
  inputs.recompute = {Recompute::keep_attention, 1, 1, kLayers};
  inputs.device_is_host = false;
  inputs.adamw_kernel = true;
  return with_batch(inputs, 1, kTokens);
}

// The third of 4 ranks of ZeRO 3.
ForecastInputs sharded_gpu_inputs() {
  ForecastInputs inputs = gpu_inputs();
  inputs.zero = 3;
  inputs.ranks = 4;
  inputs.rank = 2;
  return inputs;
}

TEST(HostMemoryBytes, are_none_on_a_cpu_and_none_of_what_stays_on_the_gpu) {
  EXPECT_EQ(host_memory_bytes(gpu_inputs()), MemoryBytes{});
  ForecastInputs inputs = sharded_gpu_inputs();
  EXPECT_EQ(host_memory_bytes(inputs), MemoryBytes{});
  inputs.device_is_host = true;
  for (const Offload offload : {Offload::cpu, Offload::disk}) {
    inputs.offload.parameters = inputs.offload.optimizer = inputs.offload.activations = offload;
    EXPECT_EQ(host_memory_bytes(inputs), MemoryBytes{});
    EXPECT_EQ(memory_forecast(inputs).host, MemoryBytes{});
  }
}

TEST(HostMemoryBytes, are_the_masters_moments_and_sums_that_left_the_gpu) {
  ForecastInputs inputs = sharded_gpu_inputs();
  inputs.tile_bytes = inputs.storage_bytes = 2;
  const int64_t elements = sum_of(rank_shares(inputs));
  const MemoryForecast before = memory_forecast(inputs);
  inputs.offload.optimizer = Offload::cpu;
  const MemoryForecast after = memory_forecast(inputs);
  EXPECT_EQ(after.host[optimizer], elements * (4 + 8));
  EXPECT_EQ(after.host[gradients], elements * 4);
  const std::vector<int64_t> shares = rank_shares(inputs);
  const int64_t largest = *std::max_element(shares.begin(), shares.end());
  EXPECT_EQ(after.host[parameters], largest * 2) << "narrowed masters";
  EXPECT_EQ(after.peak[optimizer], 0);
  // One unit's sum is on its way out.
  const int64_t leaving = after.peak[gradients] - (before.peak[gradients] - elements * 4);
  EXPECT_GT(leaving, 0);
  EXPECT_LE(leaving, largest * 4);
  // So it is at the fullest moment, or another unit's, or none's.
  const int64_t leaving_then =
      after.peak_total_bytes - before.peak_total_bytes + after.host[optimizer] + after.host[gradients];
  EXPECT_GE(leaving_then, 0);
  EXPECT_LE(leaving_then, leaving);

  inputs.offload.optimizer = Offload::disk;
  const MemoryForecast disk = memory_forecast(inputs);
  EXPECT_EQ(disk.peak, after.peak) << "the gpu does not see where the host keeps it";
  EXPECT_LT(disk.host[optimizer], after.host[optimizer]);
  EXPECT_GT(disk.host[optimizer], 0);
}

TEST(HostMemoryBytes, of_masters_are_only_the_bits_that_bf16_values_lack_where_both_left_the_gpu) {
  ForecastInputs inputs = sharded_gpu_inputs();
  inputs.tile_bytes = inputs.storage_bytes = 2;
  inputs.bf16_values = true;
  const int64_t elements = sum_of(rank_shares(inputs));
  EXPECT_EQ(memory_forecast(inputs).peak[optimizer], elements * (2 + 8));
  inputs.offload.optimizer = Offload::cpu;
  EXPECT_EQ(memory_forecast(inputs).host[optimizer], elements * (4 + 8));
  inputs.offload.parameters = Offload::cpu;
  EXPECT_EQ(memory_forecast(inputs).host[optimizer], elements * (2 + 8));
  inputs.offload.optimizer = Offload::none;
  EXPECT_EQ(memory_forecast(inputs).peak[optimizer], elements * (4 + 8));
}

TEST(HostMemoryBytes, of_lora_are_the_model_that_left_the_gpu_and_the_adapters_masters_moments_and_sums) {
  ForecastInputs inputs = sharded_gpu_inputs();
  inputs.tile_bytes = inputs.storage_bytes = 2;
  inputs.model.adapters = {.first_unit = static_cast<int>(inputs.model.first_layer_unit()),
                           .unit_elements = std::vector<int64_t>(kLayers, 6400),
                           .rank = 4};
  const int64_t share = kLayers * 6400 / 4;
  const MemoryForecast before = memory_forecast(inputs);
  EXPECT_EQ(before.peak[optimizer], share * (4 + 8));
  inputs.offload.parameters = inputs.offload.optimizer = Offload::cpu;
  const MemoryForecast after = memory_forecast(inputs);
  EXPECT_EQ(after.host[parameters], sum_of(rank_shares(inputs)) * 2 + 6400 / 4 * 2) << "and narrowed masters";
  EXPECT_EQ(after.host[optimizer], share * (4 + 8));
  EXPECT_EQ(after.host[gradients], share * 4);
  EXPECT_EQ(after.peak[optimizer], 0);
  EXPECT_LT(after.peak[gradients], inputs.model.unit_elements[1] / 4) << "of adapters alone";
  inputs.offload.parameters = Offload::disk;
  EXPECT_EQ(memory_forecast(inputs).host[optimizer], after.host[optimizer]);
}

TEST(HostMemoryBytes, are_the_shares_of_parameters_that_left_the_gpu) {
  ForecastInputs inputs = sharded_gpu_inputs();
  const MemoryForecast before = memory_forecast(inputs);
  inputs.offload.parameters = Offload::cpu;
  const MemoryForecast after = memory_forecast(inputs);
  EXPECT_EQ(after.host[parameters], sum_of(rank_shares(inputs)) * 4);
  EXPECT_LT(after.peak[parameters], before.peak[parameters] - after.host[parameters] / 2);
  // Whole units pass through the gpu one or two at a time.
  EXPECT_GE(after.peak[parameters], inputs.model.unit_elements[1] * 4);
}

// The layers' tensors go through the real store; a CPU takes the GPU's offload. Of a disk's the host holds those that
// are read, uploaded and taken.
TEST(HostMemoryBytes, are_the_pinned_memory_of_the_activations_that_left_the_gpu) {
  install_cpu_caching_allocator();
  const testing::TemporaryFolder folder;
  SpillFile file(folder.path(), 0);
  for (const Offload offload : {Offload::cpu, Offload::disk})
    for (const int64_t every : {1, 2})
      for (const int64_t resident : {2, 3, 5}) {
        SCOPED_TRACE(::testing::Message()
                     << name_of(offload) << ", every " << every << " layers, " << resident << " stay");
        ForecastInputs inputs = gpu_inputs();
        inputs.offload.activations = offload;
        inputs.resident_layers = resident;
        if (every > 1) inputs.recompute = {Recompute::full, every, 1, kLayers};
        const auto ranges = std::make_shared<testing::PinnedRanges>();
        const auto pool = std::make_shared<PinnedPool>(testing::pinning_of(ranges));
        ResidentLayers layers{.resident_layers = resident};
        std::unique_ptr<SpanStorage> behind;
        if (offload == Offload::disk) {
          behind = make_disk_spans(kLayers, file, pool);
          layers.ahead_layers = kAheadFromDiskToGpu_layers;
        }
        const auto store = make_offloaded_activations(
            kLayers, make_host_spans(kLayers, at::kCPU, pool, make_copy_stream(at::kCPU), std::move(behind)),
            layers);
        for (int64_t layer = 0; layer < kLayers; ++layer) {
          const at::Tensor x = at::empty({kTokens, kHidden});
          if (every == 1)
            store->put(layer, {x, at::empty({kTokens, kHeads, kWidth}), at::empty({kHeads, kTokens})});
          else
            store->put(layer, layer % every == 0 ? Saved{x} : Saved{});
        }
        for (int64_t layer = kLayers - 1; layer >= 0; --layer) store->take(layer);
        // The pool keeps the most that was in use.
        const int64_t formula = host_memory_bytes(inputs)[activations];
        EXPECT_LE(formula, ranges->bytes());
        EXPECT_GE(formula, ranges->bytes() - 3 * kLayers * 4096) << "but for whole pages";
      }
}

// Two units on their way to a slow disk, one that is stepped, one read ahead, and the one uploaded last.
TEST(HostMemoryBytes, hold_the_pinned_memory_of_the_parameters_that_left_the_gpu_for_a_disk) {
  install_cpu_caching_allocator();
  ForecastInputs inputs = with_ranks(gpu_inputs(), 1, 0);
  inputs.zero = 3;
  inputs.offload.parameters = Offload::disk;
  std::vector<FlatUnit> units;
  for (const int64_t elements : inputs.model.unit_elements) units.push_back({"unit", elements, {}});
  const std::vector<int> order = training_order(inputs.recompute, inputs.model.end_units());
  run_ranks_as_threads(1, [&](World& world) {
    const testing::TemporaryFolder folder;
    SpillFile file(folder.path(), 0);
    const Mesh mesh = make_mesh(world, {});
    const auto ranges = std::make_shared<testing::PinnedRanges>();
    const auto store =
        make_sharded_parameters(units, *mesh.all,
                                {.parameters = Offload::disk,
                                 .spill = &file,
                                 .copies = make_copy_stream(at::kCPU),
                                 .pinned = std::make_shared<PinnedPool>(testing::pinning_of(ranges))});
    UnitOrder passes(*store, order);
    for (const int unit : order) {
      passes.gather(unit);
      passes.release(unit);
    }
    // Both threads of the file are busy for a while.
    const at::Tensor large = at::zeros({int64_t{64} << 20}, at::kByte);
    std::vector<SpillFile::Transfer> slow;
    for (int thread = 0; thread < 2; ++thread)
      slow.push_back(file.write(file.reserve(large.numel()), large.const_data_ptr()));
    const int last = static_cast<int>(units.size()) - 1;
    const int64_t pages_bytes = std::ssize(units) * 4096, formula = host_memory_bytes(inputs)[parameters];
    for (int unit = 0; unit <= last; ++unit) {
      if (unit < last) store->prefetch_master(unit + 1);
      testing::change_master(*store, unit, [](const at::Tensor& master) { master.fill_(1); });
      EXPECT_LE(ranges->bytes(), formula + pages_bytes) << "unit " << unit;
    }
  });
}

bool proposes(const std::vector<MemoryOption>& options, const std::string& name, MemoryCategory category,
              MemorySpace space) {
  return std::any_of(options.begin(), options.end(), [&](const MemoryOption& option) {
    return option.option == name && option.category == category && option.space == space &&
           option.saved_share > 0 && option.saved_share <= 1;
  });
}

TEST(MemoryOptionsBesideAGpu, go_to_the_host_first_and_from_there_to_the_disk) {
  ForecastInputs inputs = sharded_gpu_inputs();
  const auto none = memory_options(inputs);
  for (const auto& [flag, category] :
       std::vector<std::pair<std::string, MemoryCategory>>{{"--offload_activations", activations},
                                                           {"--offload_optimizer", optimizer},
                                                           {"--offload_params", parameters}}) {
    EXPECT_TRUE(proposes(none, flag + " cpu", category, MemorySpace::device)) << flag;
    EXPECT_FALSE(proposes(none, flag + " disk", category, MemorySpace::device)) << flag;
    EXPECT_FALSE(proposes(none, flag + " cpu", category, MemorySpace::host)) << flag;
  }
  inputs.offload.activations = inputs.offload.optimizer = inputs.offload.parameters = Offload::cpu;
  const auto host = memory_options(inputs);
  EXPECT_TRUE(proposes(host, "--offload_activations disk", activations, MemorySpace::host));
  EXPECT_TRUE(proposes(host, "--offload_optimizer disk", optimizer, MemorySpace::host));
  EXPECT_TRUE(proposes(host, "--offload_params disk", parameters, MemorySpace::host));
  EXPECT_TRUE(proposes(host, "--recompute full", activations, MemorySpace::host));
  EXPECT_TRUE(proposes(host, "--optim_state_dtype bf16", optimizer, MemorySpace::host));
  EXPECT_FALSE(proposes(host, "--offload_optimizer disk", optimizer, MemorySpace::device));
  EXPECT_FALSE(proposes(host, "--tile_tokens 256", tiles, MemorySpace::host));
}

}  // namespace
}  // namespace trireme
