// What is left out of a timeline holds less than what stays. No libtorch.
#include "trireme/forecast/memory_timeline.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "trireme/forecast/sequence_ranks.h"

namespace trireme::memory_timeline_test {
namespace {

ForecastInputs inputs_of(int64_t layers, RecomputePlan plan, Offload activations, int head_chunks) {
  ForecastInputs inputs;
  inputs.model = {.layers = layers,
                  .hidden = 256,
                  .intermediate = 704,
                  .mlp_kept_width = 1408,
                  .heads = 8,
                  .kv_heads = 4,
                  .head_dim = 32,
                  .vocab = 1000,
                  .unit_elements = std::vector<int64_t>(static_cast<size_t>(layers) + 2, 1 << 20)};
  inputs.ranks = 4;
  inputs.tokens = 4000;
  inputs.zero = 3;
  inputs.recompute = plan;
  inputs.recompute.layers = layers;
  inputs.offload.activations = activations;
  inputs.device_is_host = activations != Offload::cpu;
  inputs.head_chunks = head_chunks;
  inputs.tile_tokens = inputs.logits_tile_tokens = 256;
  return with_sequence_ranks(inputs, 4, 1, 1);
}

MemoryBytes fullest(const std::vector<MemorySnapshot>& snapshots) {
  MemoryBytes most;
  for (const MemorySnapshot& snapshot : snapshots)
    for (const MemoryCategory category : kAllMemoryCategories)
      most[category] = std::max(most[category], snapshot.bytes[category]);
  return most;
}
int64_t fullest_total(const ForecastInputs& inputs, const std::vector<MemorySnapshot>& snapshots) {
  const StoresOverStep stores(inputs);
  int64_t most = 0;
  for (const MemorySnapshot& snapshot : snapshots)
    most = std::max(most, snapshot.bytes.total() + stores.parameter_bytes(snapshot.units) +
                              stores.gradient_bytes(snapshot.units));
  return most;
}

struct SnapshotCounts {
  size_t all = 0, few = 0;

  // -> the snapshots of every layer.
  std::vector<MemorySnapshot> expect_same_peaks(const ForecastInputs& inputs) {
    std::vector<MemorySnapshot> every_layer = memory_timeline(inputs);
    const auto some = memory_timeline(inputs, /*every_layer=*/false);
    EXPECT_EQ(fullest(some), fullest(every_layer));
    EXPECT_EQ(fullest_total(inputs, some), fullest_total(inputs, every_layer));
    all += every_layer.size();
    few += some.size();
    return every_layer;
  }
};

TEST(MemoryTimeline, of_few_layers_has_the_peaks_of_all) {
  SnapshotCounts counts;
  for (const int64_t layers : {1, 2, 5, 12})
    for (const Recompute policy : {Recompute::full, Recompute::keep_attention, Recompute::none})
      for (const double fraction : {0.0, 0.4, 1.0})
        for (const int64_t every : {1, 2, 3, 5})
          for (const Offload activations : {Offload::none, Offload::cpu, Offload::disk})
            for (const int64_t head_elements : {16, 1 << 22}) {
              const int chunks = head_elements == 16 ? 1 : 2;
              if (policy == Recompute::none && (activations != Offload::none || every > 1)) continue;
              ForecastInputs inputs =
                  inputs_of(layers, {policy, every, fraction, layers}, activations, chunks);
              inputs.model.unit_elements.back() = head_elements;
              inputs.model.unit_elements.front() = 1 << 22;
              inputs.model.embedding_read_backward = chunks == 2;
              SCOPED_TRACE(::testing::Message() << inputs.recompute.description() << " of " << layers
                                                << ", activations to " << name_of(activations));
              for (inputs.resident_layers = 2; inputs.resident_layers <= 8; inputs.resident_layers += 3) {
                counts.expect_same_peaks(inputs);
              }
            }
  EXPECT_LT(counts.few, counts.all * 3 / 4);
}

TEST(MemoryTimeline, of_few_layers_has_the_peaks_of_all_that_keep_parts) {
  for (const int64_t layers : {2, 5, 12})
    for (const int64_t attention : {int64_t{0}, layers / 2, layers})
      for (const int64_t qkv : {int64_t{0}, int64_t{1}, layers})
        for (const int64_t mlp : {int64_t{0}, layers - 1, layers})
          for (const int chunks : {1, 2}) {
            const RecomputePlan plan = plan_keeping({attention, qkv, mlp}, 1, layers);
            const ForecastInputs inputs = inputs_of(layers, plan, Offload::none, chunks);
            SCOPED_TRACE(::testing::Message() << plan.description());
            const auto every_layer = SnapshotCounts().expect_same_peaks(inputs);
            for (const MemorySnapshot& snapshot : every_layer)
              for (const MemoryCategory category : kAllMemoryCategories)
                EXPECT_GE(snapshot.bytes[category], 0) << snapshot.name();
            EXPECT_EQ(every_layer.back().bytes[MemoryCategory::activations],
                      inputs.batch * inputs.shard_tokens * 256 * 4);
          }
}

// Every `period`-th layer has full attention with other heads, and more or fewer elements.
ForecastInputs alternating(ForecastInputs inputs, int64_t period, int64_t full_elements) {
  inputs.model.full_heads = AttentionHeads{8, 2, 64, /*keys_are_values=*/true};
  const int64_t layers = inputs.model.layers;
  for (int64_t layer = 0; layer < layers; ++layer) {
    const bool full = (layer + 1) % period == 0;
    inputs.model.layer_windows.push_back(full ? 0 : 64);
    if (full) inputs.model.unit_elements[static_cast<size_t>(layer) + 1] = full_elements;
  }
  if (layers < period) inputs.model.full_heads.reset();
  return with_sequence_ranks(inputs, inputs.ulysses, 1, 1);
}

TEST(MemoryTimeline, of_few_layers_that_alternate_has_the_peaks_of_all) {
  SnapshotCounts counts;
  size_t run = 0;
  for (const int64_t layers : {1, 5, 12, 25})
    for (const int64_t period : {2, 3, 6})
      for (const int64_t full_elements : {1 << 18, 1 << 22})
        for (const Recompute policy : {Recompute::full, Recompute::keep_attention, Recompute::none})
          for (const double fraction : {0.0, 0.4, 1.0})
            for (const int64_t every : {1, 2, 4})
              for (const Offload activations : {Offload::none, Offload::cpu, Offload::disk}) {
                if (policy == Recompute::none && (activations != Offload::none || every > 1)) continue;
                ForecastInputs inputs =
                    alternating(inputs_of(layers, {policy, every, fraction, layers}, activations, 1), period,
                                full_elements);
                ++run;
                inputs.zero = static_cast<int>(run % 3) + 1;
                inputs.update_in_backward = run % 4 == 0;
                inputs.micro_batches = run % 5 == 0 ? 2 : 1;
                if (run % 7 == 0) inputs.offload.optimizer = Offload::cpu;
                if (run % 11 == 0 && inputs.zero == 3) inputs.offload.parameters = Offload::cpu;
                inputs.resident_layers = 2 + static_cast<int64_t>(run % 3) * 3;
                SCOPED_TRACE(::testing::Message()
                             << inputs.recompute.description() << " of " << layers << ", period " << period
                             << ", ZeRO " << inputs.zero << ", activations to " << name_of(activations));
                counts.expect_same_peaks(inputs);
              }
  EXPECT_LT(counts.few, counts.all * 3 / 4);
}

TEST(MemoryTimeline, of_layers_that_repeat_after_many_is_that_of_few) {
  SnapshotCounts counts;
  counts.expect_same_peaks(
      alternating(inputs_of(400, {Recompute::full, 1, 1, 400}, Offload::none, 1), /*period=*/100, 1 << 18));
  EXPECT_LT(counts.few, counts.all * 3 / 4);
}

TEST(MemoryTimeline, names_each_moment) {
  const auto snapshots = memory_timeline(inputs_of(2, {Recompute::full, 1, 1, 2}, Offload::none, 1));
  EXPECT_EQ(snapshots.front().name(), "rotary tables");
  EXPECT_EQ(snapshots.back().name(), "gradient of the embedding: sum over ranks");
  EXPECT_TRUE(std::ranges::any_of(snapshots, [](const MemorySnapshot& snapshot) {
    return snapshot.name() == "backward of layer 1: attention";
  }));
}

}  // namespace
}  // namespace trireme::memory_timeline_test
