// The memory formulas beside a GPU, without one: bytes counted on the guarded device
// (tests/support/guarded_device.h), whose operators are those of a GPU. Its attention is the reference
// kernel, whose workspace is in no formula.
#include <algorithm>

#include <gtest/gtest.h>

#include "trireme/comm/simulated_world.h"
#include "trireme/comm/thread_world.h"
#include "trireme/device/memory_budget.h"
#include "trireme/engine/assemble.h"
#include "trireme/measure/memory_report.h"

#include "tests/engine/memory_cases.h"
#include "tests/engine/tiny_model.h"
#include "tests/support/guarded_device.h"

namespace trireme::guarded_memory_bytes_test {
namespace {

using testing::MemoryCase;

// More than a tile on each of two ranks, and than a window; the reference kernel, which is slow, is not looked at.
constexpr int64_t kMost_tokens = 400;

// Of what is offloaded to the host, units and shares pass through the device.
std::vector<MemoryCase> cases_beside_the_host() {
  const auto offload = [](ZeroStage stage, Offload parameters) {
    return [=](EngineOptions& o) {
      o.zero = stage;
      o.offload.parameters = parameters;
      o.offload.optimizer = o.offload.activations = Offload::cpu;
    };
  };
  return {
      {"uneven, 1 rank, all on the host", testing::uneven_model, 1, 1, 1, 512,
       offload(ZeroStage::parameters, Offload::cpu)},
      {"uneven, 2 ranks, all on the host", testing::uneven_model, 2, 2, 1, 512,
       offload(ZeroStage::parameters, Offload::cpu)},
      {"tied, 2 ranks, all on the host", testing::tied_model, 2, 2, 1, 512,
       offload(ZeroStage::parameters, Offload::cpu)},
      {"gemma 4 E2B, a wide table, 2 ranks, all on the host", testing::gemma4_e2b_wide_table_model, 2, 2, 1,
       512, offload(ZeroStage::parameters, Offload::cpu)},
      {"tied, 2 ranks, all on the host, two micro-batches", testing::tied_model, 2, 2, 1, 512,
       [=](EngineOptions& o) {
         offload(ZeroStage::parameters, Offload::cpu)(o);
         o.planned_batch.micro_batches = 2;
       }},
      {"grouped, 1 rank, ZeRO 2, optimizer on the host, three micro-batches", testing::grouped_model, 1, 1, 1,
       512,
       [=](EngineOptions& o) {
         offload(ZeroStage::gradients, Offload::none)(o);
         o.planned_batch.micro_batches = 3;
       }},
      {"tied, 2 ranks, LoRA, embedding whole, ZeRO 2, optimizer on the host, two micro-batches",
       testing::tied_model, 2, 2, 1, 512,
       [=](EngineOptions& o) {
         offload(ZeroStage::gradients, Offload::none)(o);
         o.lora.rank = 24;
         o.lora.modules_to_save = "embed_tokens";
         o.planned_batch.micro_batches = 2;
       }},
      {"tied, 2 ranks, LoRA, ZeRO 2, optimizer on the host, two micro-batches", testing::tied_model, 2, 2, 1,
       512,
       [=](EngineOptions& o) {
         offload(ZeroStage::gradients, Offload::none)(o);
         o.lora.rank = 24;
         o.planned_batch.micro_batches = 2;
       }},
      {"grouped, 2 ranks, ZeRO 2, two micro-batches", testing::grouped_model, 2, 2, 1, 512,
       [](EngineOptions& o) {
         o.zero = ZeroStage::gradients;
         o.planned_batch.micro_batches = 2;
       }},
      {"grouped, 2 ranks, LoRA, embedding whole, ZeRO 2, two micro-batches", testing::grouped_model, 2, 2, 1,
       512,
       [](EngineOptions& o) {
         o.zero = ZeroStage::gradients;
         o.planned_batch.micro_batches = 2;
         o.lora.rank = 24;
         o.lora.modules_to_save = "embed_tokens";
       }},
      {"grouped, 2 ranks, parameters on disk", testing::grouped_model, 2, 2, 1, 512,
       offload(ZeroStage::parameters, Offload::disk)},
      {"grouped, 2 ranks, ZeRO 2, optimizer on the host", testing::grouped_model, 2, 2, 1, 512,
       offload(ZeroStage::gradients, Offload::none)},
      {"grouped, 2 ranks, ZeRO 2, gradients travel in bf16", testing::grouped_model, 2, 2, 1, 512,
       [](EngineOptions& o) {
         o.zero = ZeroStage::gradients;
         o.reduce_dtype = at::kBFloat16;
       }},
      {"grouped, 2 ranks, ZeRO 1, optimizer on the host", testing::grouped_model, 2, 2, 1, 512,
       offload(ZeroStage::optimizer, Offload::none)},
      {"tied, 2 ranks, LoRA, all on the host", testing::tied_model, 2, 2, 1, 512,
       [=](EngineOptions& o) {
         offload(ZeroStage::parameters, Offload::cpu)(o);
         o.lora.rank = 24;
       }},
      {"grouped, 1 rank, LoRA, ZeRO 2, optimizer on the host", testing::grouped_model, 1, 1, 1, 512,
       [=](EngineOptions& o) {
         offload(ZeroStage::gradients, Offload::none)(o);
         o.lora.rank = 24;
       }},
  };
}

TEST(MemoryOnGuardedDevice, peaks_of_all_but_attention_are_within_5_percent_of_the_formulas) {
  std::vector<MemoryCase> cases = testing::memory_cases();
  for (MemoryCase& offloaded : cases_beside_the_host()) cases.push_back(std::move(offloaded));
  for (const bool all_in_bf16 : {false, true})
    for (MemoryCase test : cases) {
      if (test.ranks > (all_in_bf16 ? 2 : 1))
        continue;  // more ranks hold nothing that two do not, and take long
      test.tokens = std::min(test.tokens, kMost_tokens);
      const auto change = test.change;
      test.change = [&](EngineOptions& options) {
        change(options);
        options.device = testing::guarded_device();
        options.attention = AttentionKernel::reference;
        if (!all_in_bf16) return;
        options.precision = Precision::bf16;
        options.bf16_matmul = Bf16Matmul::native;
      };
      for (const auto& [state, forecast, inputs] : testing::measure_memory(test, /*threads=*/1)) {
        SCOPED_TRACE(::testing::Message() << test.name << (all_in_bf16 ? ", all in bf16" : "") << "\n"
                                          << memory_report(state, forecast));
        for (const MemoryCategory category : kAllMemoryCategories)
          if (category != MemoryCategory::attention)
            testing::expect_within(0.05, name_of(category), state.peak[category], forecast.peak[category]);
        const int64_t reference = std::max<int64_t>(
            0, state.peak[MemoryCategory::attention] - forecast.peak[MemoryCategory::attention]);
        EXPECT_LE(state.peak_total_bytes - reference, forecast.peak_total_bytes * 21 / 20);
        // An optimizer on the device steps by pieces there, when the passes are over.
        if (inputs.offload.optimizer == Offload::none) continue;
        EXPECT_GE(state.peak_total_bytes, forecast.peak_total_bytes * 19 / 20);
      }
    }
}

// What an engine plans with.
class BudgetOnGuardedDevice : public ::testing::Test {
 protected:
  BudgetOnGuardedDevice() {
    testing::write_tiny_model(folder_.path(), testing::tiny_llama_config());
    options_.device = device_;
    options_.attention = AttentionKernel::reference;
    options_.planned_batch = {.samples = 1, .tokens = 64};
    release_cached_memory(device_);  // of other tests
  }
  int64_t budget_bytes(World& world) const {
    return assemble(world, folder_.path(), options_)->recompute_choice().value().budget_bytes;
  }
  const at::Device device_ = testing::guarded_device();

 private:
  testing::TemporaryFolder folder_;
  EngineOptions options_;
};

// As a stage of another engine, or `validate` after its dry run.
TEST_F(BudgetOnGuardedDevice, holds_what_an_earlier_engine_left) {
  run_ranks_as_threads(1, [&](World& world) {
    const int64_t of_first = budget_bytes(world);
    at::empty({int64_t{1} << 28}, at::TensorOptions(device_).dtype(at::kByte));
    EXPECT_EQ(budget_bytes(world), of_first);
  });
}

// A real one would have a GPU of its own.
TEST_F(BudgetOnGuardedDevice, of_a_simulated_rank_is_the_whole_device) {
  SimulatedWorld alone(1, 1, BackendLibrary::post_board, std::chrono::seconds(10)),
      four(4, 4, BackendLibrary::post_board, std::chrono::seconds(10));
  const int64_t whole = budget_bytes(alone);
  release_cached_memory(device_);
  EXPECT_NEAR(static_cast<double>(budget_bytes(four)), static_cast<double>(whole),
              1e-3 * static_cast<double>(whole));
}

}  // namespace
}  // namespace trireme::guarded_memory_bytes_test
