// Rank 0 of P ranks, simulated by one process (comm/simulated_world.h), beside rank 0 of P real ones: the
// same bytes of memory in every category, and the same bytes in every collective.
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/comm/simulated_world.h"
#include "trireme/comm/thread_world.h"
#include "trireme/device/cpu_caching_allocator.h"
#include "trireme/engine/assemble.h"

#include "tests/engine/memory_cases.h"
#include "tests/engine/tiny_model.h"

namespace trireme {
namespace {

using Change = std::function<void(EngineOptions&)>;

struct PolicyUnderTest {
  const char* name;
  int ranks;
  int ulysses = 1;
  Change change = [](EngineOptions&) {};
  Json (*config)() = testing::narrow_model;
  std::vector<Documents> documents = {};
  int64_t tokens = 192;
};

std::vector<PolicyUnderTest> policies() {
  const auto zero = [](
                        int stage, const Change& more = [](EngineOptions&) {}) -> Change {
    return [=](EngineOptions& o) {
      o.zero = static_cast<ZeroStage>(stage);
      more(o);
    };
  };
  const auto ring = [](int ranks) -> Change { return [=](EngineOptions& o) { o.ring = ranks; }; };
  return {
      {"Ulysses 2, ZeRO 0", 2, 2, zero(0)},
      {"Ulysses 2 and 2 samples, ZeRO 1", 4, 2, zero(1)},
      {"Ulysses 4, ZeRO 2", 4, 4, zero(2)},
      {"4 samples, ZeRO 3, inputs kept", 4, 1,
       zero(3, [](EngineOptions& o) { o.recompute.policy = Recompute::full; })},
      {"uneven heads, tokens and shares over 3, ZeRO 3", 3, 3, zero(3), testing::uneven_model, {}, 193},
      {"uneven heads, 4 ranks, gradients travel in bf16",
       4,
       4,
       zero(2, [](EngineOptions& o) { o.reduce_dtype = at::kBFloat16; }),
       testing::uneven_model,
       {},
       195},
      {"ring 2", 2, 1, ring(2)},
      {"ring 4, uneven", 4, 1, ring(4), testing::narrow_model, {}, 197},
      {"Ulysses 2 x ring 2, all kept, bf16", 4, 2,
       [](EngineOptions& o) {
         o.ring = 2;
         o.recompute.policy = Recompute::none;
         o.precision = Precision::bf16;
         o.bf16_matmul = Bf16Matmul::fp32;
       }},
      {"keys gathered from 3, uneven",
       3,
       1,
       [](EngineOptions& o) {
         o.ring = 3;
         o.ring_method = RingMethod::gather;
       },
       testing::narrow_model,
       {},
       194},
      {"2 head chunks", 2, 2, [](EngineOptions& o) { o.head_chunks = 2; }, testing::straddling_model},
      {"parameters and activations on a disk, ZeRO 3", 2, 2,
       zero(3, [](EngineOptions& o) { o.offload.parameters = o.offload.activations = Offload::disk; })},
      {"optimizer offloaded, ZeRO 1", 2, 1,
       zero(1, [](EngineOptions& o) { o.offload.optimizer = Offload::cpu; })},
      {"updates in backward, ZeRO 3", 2, 2, zero(3, [](EngineOptions& o) { o.update_in_backward = true; })},
      {"packed documents, Ulysses 2 x ring 2",
       4,
       2,
       ring(2),
       testing::narrow_model,
       {Documents({0, 50, 180, 192})}},
  };
}

struct RankRecord {
  MemoryState memory;
  std::map<std::string, std::pair<int64_t, int64_t>> sent;  // "ulysses all_to_all" -> calls, bytes
  double loss = 0, gradient_norm = 0;
  bool threads_beside = false;
};

// Of two steps.
RankRecord run_rank(World& world, const std::filesystem::path& folder, const PolicyUnderTest& policy) {
  at::set_num_threads(1);
  EngineOptions options;
  options.ulysses = policy.ulysses;
  options.tile_tokens = 64;
  options.logits_tile_tokens = 64;
  policy.change(options);
  if (uses_disk(options.offload)) options.offload.folder = folder;
  const auto engine = assemble(world, folder, options);
  const Mesh& mesh = engine->mesh();
  RankRecord record;
  for (uint64_t step = 0; step < 2; ++step) {
    const TokenBatch batch = testing::slice_of_batch(
        1, engine->config().vocab_size, step * 10 + static_cast<uint64_t>(mesh.dp_index),
        {policy.tokens, options.ulysses, options.ring}, mesh.sp->rank(), policy.documents);
    const StepResult result = engine->train_step({batch}, 1e-3);
    record.loss = result.loss;
    record.gradient_norm = result.gradient_norm;
  }
  record.threads_beside = uses_disk(options.offload) || options.offload.optimizer != Offload::none;
  record.memory = engine->memory_account()->state();
  for (const Group* group : {mesh.all.get(), mesh.sp.get(), mesh.ulysses.get(), mesh.ring.get()})
    for (const auto& [name, traffic] : group->traffic())
      record.sent[group->name() + " " + name] = {traffic.calls, traffic.sent_bytes};
  return record;
}

void expect_equal(const char* when, const MemoryBytes& simulated, const MemoryBytes& real) {
  for (const MemoryCategory category : kAllMemoryCategories)
    EXPECT_EQ(simulated[category], real[category]) << name_of(category) << " " << when;
}

// Where a thread steps or writes values beside the passes, chance says what is there at one time: two real
// runs differ as well.
void expect_equal_but_for_chance(const MemoryBytes& simulated, const MemoryBytes& real) {
  for (const MemoryCategory category : kAllMemoryCategories) {
    const double share = category == MemoryCategory::parameters ? 0.35 : 0.02;
    EXPECT_NEAR(static_cast<double>(simulated[category]), static_cast<double>(real[category]),
                share * static_cast<double>(real[category]))
        << name_of(category);
  }
}

class SimulatedRanks : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { install_cpu_caching_allocator(); }
};

TEST_F(SimulatedRanks, hold_and_send_the_bytes_of_real_ones_under_every_policy) {
  for (const PolicyUnderTest& policy : policies()) {
    SCOPED_TRACE(policy.name);
    const testing::TemporaryFolder folder;
    testing::write_tiny_model(folder.path(), policy.config(), /*spread=*/0.15);
    RankRecord real;
    run_ranks_as_threads(policy.ranks, [&](World& world) {
      RankRecord record = run_rank(world, folder.path(), policy);
      if (world.rank() == 0) real = std::move(record);
    });
    SimulatedWorld world(policy.ranks, policy.ranks, BackendLibrary::post_board, std::chrono::seconds(10));
    const RankRecord simulated = run_rank(world, folder.path(), policy);
    if (simulated.threads_beside) {
      expect_equal_but_for_chance(simulated.memory.peak, real.memory.peak);
    } else {
      expect_equal("at the end", simulated.memory.now, real.memory.now);
      expect_equal("at its own peak", simulated.memory.peak, real.memory.peak);
      expect_equal("at the peak", simulated.memory.at_peak, real.memory.at_peak);
      EXPECT_EQ(simulated.memory.peak_total_bytes, real.memory.peak_total_bytes);
    }
    EXPECT_EQ(simulated.sent, real.sent);
    EXPECT_TRUE(std::isfinite(simulated.loss) && std::isfinite(simulated.gradient_norm));
    // What reaches a rank is what it sends, where shares are even.
    int64_t sent_bytes = 0;
    for (const auto& [name, of] : simulated.sent) sent_bytes += of.second;
    EXPECT_NEAR(static_cast<double>(world.stand_ins().received_bytes), static_cast<double>(sent_bytes),
                0.1 * static_cast<double>(sent_bytes));
  }
}

TEST_F(SimulatedRanks, are_refused_where_real_ones_are) {
  const testing::TemporaryFolder folder;
  testing::write_tiny_model(folder.path(), testing::narrow_model(), /*spread=*/0.15);  // 4 heads
  const auto assemble_with = [&](int ranks, int ulysses) {
    SimulatedWorld world(ranks, ranks, BackendLibrary::post_board, std::chrono::seconds(10));
    EngineOptions options;
    options.ulysses = ulysses;
    return assemble(world, folder.path(), options);
  };
  EXPECT_THROW(assemble_with(8, 8), ConfigError);
  EXPECT_THROW(assemble_with(6, 4), ConfigError);
  EXPECT_NO_THROW(assemble_with(8, 4));
}

}  // namespace
}  // namespace trireme
