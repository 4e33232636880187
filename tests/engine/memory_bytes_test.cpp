// Bytes that a step takes, counted as they are allocated, against the formulas that are known before the run.
// A binary of its own: it makes the caching allocator libtorch's for the whole process.
#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/comm/thread_world.h"
#include "trireme/device/cpu_caching_allocator.h"
#include "trireme/device/processor.h"
#include "trireme/device/simd_level.h"
#include "trireme/engine/assemble.h"
#include "trireme/engine/make_forecast_inputs.h"
#include "trireme/forecast/attention_snapshots.h"
#include "trireme/forecast/memory_forecast.h"
#include "trireme/forecast/memory_options.h"
#include "trireme/forecast/sequence_ranks.h"
#include "trireme/forecast/store_bytes.h"
#include "trireme/kernels/long_documents.h"
#include "trireme/kernels/tile_gemm.h"
#include "trireme/measure/memory_report.h"

#include "tests/engine/memory_cases.h"
#include "tests/engine/tiny_model.h"

namespace trireme {

const ModelFamily& toy_family();

namespace {

using enum MemoryCategory;
using testing::encoder_model, testing::grouped_model, testing::narrow_model, testing::straddling_model;
using testing::expect_within, testing::measure_memory;
using testing::kCrumbs_bytes, testing::kLogitsTile_tokens, testing::kTile_tokens;
using testing::TemporaryFolder;
using testing::tied_model, testing::uneven_model;
using Case = testing::MemoryCase;

class MemoryOfAStep : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { install_cpu_caching_allocator(); }
};

bool is_in_native_bf16(const Case& test) {
  EngineOptions options;
  test.change(options);
  return options.bf16_matmul == Bf16Matmul::native;
}
// A processor without instructions for bf16 products takes far longer for them (docs/benchmarks/README.md).
bool takes_long(const Case& test) {
  return is_in_native_bf16(test) && !cpu_has_bf16_matmul();
}
// oneDNN's workspace of such products, which the formulas have, is that of AVX-512 without instructions for them:
// elsewhere they are an upper bound.
bool has_less_workspace(const Case& test) {
  const bool slow_instructions = cpu_rounds_to_bf16() && !cpu_has_bf16_matmul();
  return is_in_native_bf16(test) && (simd_level() != SimdLevel::v4 || slow_instructions);
}

TEST_F(MemoryOfAStep, measured_peaks_of_every_category_are_within_5_percent_of_the_formulas) {
  for (Case test : testing::memory_cases()) {
    if (takes_long(test)) test.tokens /= 4;
    const auto of_ranks = measure_memory(test, /*threads=*/1);
    for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
      const auto& [state, forecast, inputs] = of_ranks[rank];
      SCOPED_TRACE(::testing::Message()
                   << test.name << ", rank " << rank << "\n"
                   << memory_report(state, forecast) << "fullest: " << forecast.fullest.name());
      const bool bound = has_less_workspace(test);
      for (const MemoryCategory category : kAllMemoryCategories)
        if (bound && category == tiles)
          EXPECT_LE(state.peak[tiles], forecast.peak[tiles] + kCrumbs_bytes);
        else
          expect_within(0.05, name_of(category), state.peak[category], forecast.peak[category]);
      EXPECT_LE(state.peak_total_bytes, forecast.peak_total_bytes * 21 / 20);
      if (bound) continue;
      EXPECT_GE(state.peak_total_bytes, forecast.peak_total_bytes * 19 / 20);
    }
  }
}

Json one_head_a_rank() {
  Json config = straddling_model();
  config["num_key_value_heads"] = 2;
  return config;
}

void in_native_bf16(EngineOptions& options) {
  options.precision = Precision::bf16;
  options.bf16_matmul = Bf16Matmul::native;
}

Json toy_model() {
  return {{"model_type", "toy"},      {"hidden_size", 256},
          {"num_attention_heads", 8}, {"vocab_size", 300},
          {"num_key_value_heads", 8}, {"intermediate_size", 64},
          {"num_hidden_layers", 4},   {"max_position_embeddings", 4096}};
}

TEST_F(MemoryOfAStep, of_a_family_without_a_formula_is_never_above_the_widest) {
  const auto in_bf16 = [](EngineOptions& o) { o.precision = Precision::bf16; };
  const auto in_fp32 = [](EngineOptions& o) { o.recompute.policy = Recompute::full; };
  for (const auto& change : {std::function<void(EngineOptions&)>(in_bf16), {in_native_bf16}, {in_fp32}}) {
    const Case test{.name = "toy",
                    .config = toy_model,
                    .ranks = 1,
                    .ulysses = 1,
                    .batch = 1,
                    .tokens = 1024,
                    .change = change,
                    .families = {&toy_family()}};
    const auto measured = measure_memory(test, /*threads=*/1).front();
    SCOPED_TRACE(memory_report(measured.state, measured.forecast));
    EXPECT_LE(measured.state.peak[tiles], measured.forecast.peak[tiles] + kCrumbs_bytes);
    EXPECT_LE(measured.state.peak_total_bytes, measured.forecast.peak_total_bytes * 101 / 100);
  }
}

TEST_F(MemoryOfAStep, in_native_bf16_peaks_are_within_5_percent_however_a_sequence_is_shared) {
  const std::vector<std::pair<const char*, Json (*)()>> models = {
      {"grouped", grouped_model}, {"tied", tied_model}, {"uneven", uneven_model}};
  for (const auto& [name, config] : models) {
    if (!cpu_has_bf16_matmul() && config != uneven_model) continue;  // they take long: one model shows it
    for (const int ulysses : {1, 2})
      for (const int ring : {1, 2}) {
        const Case test{name, config, ulysses * ring, ulysses, 1, 450, [&, ring = ring](EngineOptions& o) {
                          in_native_bf16(o);
                          o.ring = ring;
                        }};
        for (const auto& [state, forecast, inputs] : measure_memory(test, 1)) {
          SCOPED_TRACE(::testing::Message()
                       << name << ", ulysses " << ulysses << ", ring " << ring << "\n"
                       << memory_report(state, forecast) << "fullest: " << forecast.fullest.name());
          // On AMX oneDNN keeps blocks of both operands beside a product: they tell in tiles of so few tokens.
          const double of_tiles = processor_bf16_units() == Bf16Units::amx ? 0.08 : 0.05;
          for (const MemoryCategory category : kAllMemoryCategories)
            if (has_less_workspace(test) && category == tiles)
              EXPECT_LE(state.peak[tiles], forecast.peak[tiles] + kCrumbs_bytes);
            else
              expect_within(category == tiles ? of_tiles : 0.05, name_of(category), state.peak[category],
                            forecast.peak[category]);
        }
      }
  }
}

// The workspace of a product is known by measurement alone, and for processors like these: the formula is an
// upper bound by what it says of it.
TEST_F(MemoryOfAStep, in_native_bf16_tiles_of_many_tokens_hold_no_more_than_the_formula) {
  if (!cpu_has_bf16_matmul()) GTEST_SKIP() << "products of bf16 have another workspace on this processor";
  struct Run {
    const char* name;
    Json (*config)();
    int ring, threads;
    int64_t tile_tokens;
  };
  for (const Run& run : {Run{"narrow", narrow_model, 1, 1, 1024}, Run{"narrow", narrow_model, 2, 2, 4096},
                         Run{"uneven", uneven_model, 1, 2, 1024}, Run{"encoder", encoder_model, 1, 1, 4096},
                         Run{"encoder", encoder_model, 2, 2, 1024}}) {
    const Case test{run.name, run.config, run.ring, 1, 1, 2000, [&](EngineOptions& o) {
                      in_native_bf16(o);
                      o.ring = run.ring;
                      o.tile_tokens = run.tile_tokens;
                      o.logits_tile_tokens = 128;
                      o.recompute.policy = Recompute::full;
                    }};
    for (const auto& [state, forecast, inputs] : measure_memory(test, run.threads)) {
      SCOPED_TRACE(::testing::Message()
                   << run.name << ", ring " << run.ring << ", " << run.threads << " threads, tiles of "
                   << run.tile_tokens << "\n"
                   << memory_report(state, forecast) << "fullest: " << forecast.fullest.name());
      for (const MemoryCategory category : kAllMemoryCategories)
        if (category != tiles)
          expect_within(0.05, name_of(category), state.peak[category], forecast.peak[category]);
      EXPECT_LE(state.peak[tiles], forecast.peak[tiles] * 21 / 20 + kCrumbs_bytes);
      ForecastInputs without = inputs;
      without.product_threads = 0;
      EXPECT_GE(state.peak[tiles], memory_forecast(without).peak[tiles] * 19 / 20 - kCrumbs_bytes);
    }
  }
}

TEST_F(MemoryOfAStep, two_threads_of_the_attention_kernel_have_their_workspace_each) {
  // One key/value head: its queries are dealt out to both threads, so that both work for sure.
  const auto of_ranks = measure_memory({"", uneven_model, 1, 1, 1, 1024}, /*threads=*/2);
  const auto& [state, forecast, inputs] = of_ranks[0];
  SCOPED_TRACE(memory_report(state, forecast));
  expect_within(0.05, "attention", state.peak[attention], forecast.peak[attention]);
}

// What waits for the disk is freed sooner or later, depending on the disk: the formulas say the most.
// Gradients of a head whose queries are in two chunks are in fp32 until it leaves.
TEST_F(MemoryOfAStep, head_chunks_that_share_a_key_value_head_are_within_5_percent_of_the_formula) {
  const std::vector<std::pair<const char*, Json (*)()>> models = {{"one head a rank", one_head_a_rank},
                                                                  {"straddling", straddling_model}};
  for (const auto& [name, model] : models)
    for (const Precision precision : {Precision::fp32, Precision::bf16})
      for (const int head_chunks : {2, 3}) {
        const Case chunks{name, model, 2, 2, 1, 2000, [&](EngineOptions& o) {
                            o.head_chunks = head_chunks;
                            o.precision = precision;
                            o.recompute.policy = Recompute::keep_attention;
                          }};
        for (const auto& [state, forecast, inputs] : measure_memory(chunks, 1)) {
          SCOPED_TRACE(::testing::Message()
                       << name << ", " << name_of(precision) << ", " << head_chunks << " chunks\n"
                       << memory_report(state, forecast) << "fullest: " << forecast.fullest.name());
          for (const MemoryCategory category : kAllMemoryCategories)
            expect_within(0.05, name_of(category), state.peak[category], forecast.peak[category]);
        }
      }
}

TEST_F(MemoryOfAStep, with_offload_to_disk_no_category_exceeds_its_formula_and_memory_falls) {
  const Case resident{
      "", grouped_model, 2, 2, 1, 1024, [](EngineOptions& o) { o.zero = ZeroStage::parameters; }};
  Case disk = resident;
  disk.change = [](EngineOptions& o) {
    o.zero = ZeroStage::parameters;
    o.offload.parameters = o.offload.optimizer = o.offload.activations = Offload::disk;
  };
  // In a second step writes of the first may still be under way.
  const auto before = measure_memory(resident, 1), after = measure_memory(disk, 1, 2);
  for (size_t rank = 0; rank < after.size(); ++rank) {
    const auto& [state, forecast, inputs] = after[rank];
    SCOPED_TRACE(memory_report(state, forecast));
    for (const MemoryCategory category : kAllMemoryCategories) {
      EXPECT_LE(state.peak[category], forecast.peak[category] * 21 / 20 + kCrumbs_bytes) << name_of(category);
      // Of parameters, what the executor holds and what is stepped beside it may never be there at the same
      // time.
      const int64_t least = forecast.peak[category] * (category == parameters ? 2 : 3) / 6;
      EXPECT_GE(state.peak[category], least - kCrumbs_bytes) << name_of(category);
    }
    EXPECT_LT(state.peak[optimizer], before[rank].state.peak[optimizer]);
    EXPECT_LT(state.peak_total_bytes, before[rank].state.peak_total_bytes);
  }
}

// Where a worker steps units, `upper_bounds` are what its timing decides: at least what a run without it
// holds, at most the formula. Nothing else depends on it.
TEST_F(MemoryOfAStep, beside_the_pass_only_what_is_stepped_depends_on_timing) {
  struct Deferred {
    Case run;
    std::vector<MemoryCategory> upper_bounds;
  };
  const std::vector<Deferred> cases = {
      {{"grouped, 1 rank, optimizer on the host", grouped_model, 1, 1, 1, 1024,
        [](EngineOptions& o) { o.offload.optimizer = Offload::cpu; }},
       {}},
      {{"tied, 2 ranks, ZeRO 1, optimizer on disk", tied_model, 2, 2, 1, 1024,
        [](EngineOptions& o) {
          o.zero = ZeroStage::optimizer;
          o.offload.optimizer = Offload::disk;
        }},
       {optimizer}},
      {{"uneven, 2 ranks, ZeRO 3, optimizer on the host", uneven_model, 2, 2, 1, 1024,
        [](EngineOptions& o) {
          o.zero = ZeroStage::parameters;
          o.offload.optimizer = Offload::cpu;
        }},
       {}},
      {{"uneven, 1 rank, updates in backward on the host", uneven_model, 1, 1, 1, 1024,
        [](EngineOptions& o) {
          o.update_in_backward = true;
          o.offload.optimizer = Offload::cpu;
        }},
       {gradients}},
      {{"tied, 2 ranks, ZeRO 2, updates in backward on disk", tied_model, 2, 2, 1, 1024,
        [](EngineOptions& o) {
          o.zero = ZeroStage::gradients;
          o.update_in_backward = true;
          o.offload.optimizer = Offload::disk;
        }},
       {gradients, optimizer}},
  };
  for (const Deferred& test : cases) {
    const auto of_ranks = measure_memory(test.run, 1, 2);
    for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
      const auto& [state, forecast, inputs] = of_ranks[rank];
      SCOPED_TRACE(::testing::Message()
                   << test.run.name << ", rank " << rank << "\n"
                   << memory_report(state, forecast) << "fullest: " << forecast.fullest.name());
      ForecastInputs in_place = inputs;
      in_place.offload.optimizer = Offload::none;
      for (const MemoryCategory category : kAllMemoryCategories) {
        if (std::ranges::find(test.upper_bounds, category) == test.upper_bounds.end()) {
          expect_within(0.05, name_of(category), state.peak[category], forecast.peak[category]);
          continue;
        }
        EXPECT_LE(state.peak[category], forecast.peak[category] * 21 / 20 + kCrumbs_bytes)
            << name_of(category);
        const int64_t least = category == gradients ? gradient_bytes(in_place) : forecast.peak[category] / 2;
        EXPECT_GE(state.peak[category], least * 19 / 20 - kCrumbs_bytes) << name_of(category);
      }
      EXPECT_LE(state.peak_total_bytes, forecast.peak_total_bytes * 21 / 20);
    }
  }
}

TEST_F(MemoryOfAStep, that_does_not_fit_is_an_error_that_names_the_options_this_run_does_not_use) {
  const TemporaryFolder folder;
  testing::write_tiny_model(folder.path(), grouped_model());
  run_ranks_as_threads(1, [&](World& world) {
    EngineOptions options;
    options.zero = ZeroStage::optimizer;
    const auto engine = assemble(world, folder.path(), options);
    const StepBatches batches{testing::slice_of_batch(1, 4096, engine->config().vocab_size, 1, 1, 0)};
    limit_host_memory(host_memory_counts().in_use_bytes + (int64_t{16} << 20));
    std::string message;
    try {
      engine->train_step(batches, 1e-3);
    } catch (const ConfigError& error) {
      message = error.what();
    }
    limit_host_memory(0);
    for (const char* part : {"out of host memory: asked for ", "this rank holds parameters ",
                             "--recompute full (saves", "--max_seq_length 2048 (saves"})
      EXPECT_THAT(message, ::testing::HasSubstr(part));
    EXPECT_THAT(message, ::testing::Not(::testing::HasSubstr("--zero 1")));
    // A shorter sequence fits, and trains as if nothing had been.
    EXPECT_TRUE(std::isfinite(
        engine->train_step({testing::slice_of_batch(1, 512, engine->config().vocab_size, 1, 1, 0)}, 1e-3)
            .loss));
  });
}

ForecastInputs inputs_of(const Json& json, int ranks) {
  const ModelConfig config = parse_model_config(json, "test");
  ForecastInputs inputs;
  inputs.model = model_sizes(config, make_model_layout(config));
  inputs.rank_heads = config.num_attention_heads;
  inputs.rank_kv_heads = config.num_key_value_heads;
  inputs.packed_heads = inputs.rank_heads + 2 * inputs.rank_kv_heads;
  inputs.ranks = ranks;
  inputs.recompute = {Recompute::keep_attention, 1, 1, config.num_hidden_layers};
  inputs.tile_tokens = kTile_tokens;
  inputs.logits_tile_tokens = kLogitsTile_tokens;
  return with_batch(inputs, 1, 4096);
}

TEST(MemoryFormulas, count_past_2_to_the_31) {
  ForecastInputs inputs = with_batch(inputs_of(grouped_model(), 1), 1, int64_t{1} << 24);
  const MemoryForecast forecast = memory_forecast(inputs);
  // Four layers keep x and o of 256 values each, and four lse: 2^24 tokens of 4 x (2 x 1024 + 16) bytes, and
  // x.
  EXPECT_EQ(forecast.peak[activations], (int64_t{1} << 24) * (4 * (2 * 1024 + 16) + 1024));
  EXPECT_GT(forecast.peak[attention], int64_t{1} << 34);
  EXPECT_GE(forecast.peak_total_bytes, forecast.peak[activations] + forecast.peak[attention] / 2);
}

TEST(MemoryFormulas, count_what_flash_attention_holds_on_a_gpu) {
  ForecastInputs inputs = inputs_of(grouped_model(), 1);  // 4 query and 2 key/value heads of 64
  inputs.device_is_host = false;
  inputs.storage_bytes = inputs.tile_bytes = 2;
  const int64_t without = memory_forecast(inputs).peak[attention];
  inputs.fused_on_gpu = true;
  const int64_t dq_and_sums = 4096 * 4 * (64 + 1) * 4, dk_and_dv_of_query_heads = 2 * 4096 * 4 * 64 * 2;
  EXPECT_EQ(memory_forecast(inputs).peak[attention], without + dq_and_sums + dk_and_dv_of_query_heads);
}

// 4,096 rows of 4 heads over 2,048 keys a tile: 1,024 rows at a time.
TEST(MemoryFormulas, count_what_attention_by_tiles_holds) {
  ForecastInputs inputs = inputs_of(grouped_model(), 1);  // 4 query and 2 key/value heads of 64
  inputs.device_is_host = false;
  inputs.storage_bytes = inputs.tile_bytes = 2;
  inputs.fused_on_gpu = inputs.score_tiles = true;
  const AttentionSnapshots snapshots = attention_snapshots(inputs, 4, 2);
  const int64_t scores = 4 * 1024 * 2048, block = 4 * 1024 * 64, padded = 2 * 2048 * 64 * 2;
  const int64_t o = 4096 * 4 * 64 * 2, kv = 2 * 4096 * 2 * 64 * 2,
                forward = scores * 6 + block * (2 + 4) + padded;
  EXPECT_EQ(snapshots.forward.front().attention, o + 4096 * 4 * 4 + forward);
  EXPECT_EQ(snapshots.backward.front().attention,
            o + kv + scores * 12 + block * (2 + 2 + 4) + 2 * padded + 2 * 4096 * 2 * 64 * 4);
  // Each of two parts of a ring, and all keys where they are gathered, beside what a fused kernel would hold.
  for (const bool gathers : {false, true}) {
    ForecastInputs ring = with_sequence_ranks(inputs, 1, 2, 0);
    ring.gathers_keys = gathers;
    ForecastInputs fused = ring;
    fused.score_tiles = false;
    const auto most = [](const ForecastInputs& of) {
      int64_t bytes = 0;
      for (const AttentionSnapshot& snapshot : attention_snapshots(of, 4, 2).forward)
        bytes = std::max(bytes, snapshot.attention);
      return bytes;
    };
    EXPECT_EQ(most(ring), most(fused) + forward) << gathers;
  }
}

// Results of a call of a long document, before they are copied to the sample's.
TEST(MemoryFormulas, count_what_calls_of_long_documents_give) {
  ForecastInputs inputs = inputs_of(grouped_model(), 1);
  inputs.device_is_host = false;
  inputs.storage_bytes = inputs.tile_bytes = 2;
  inputs.fused_on_gpu = true;
  const auto peak_with = [&](int64_t tokens, bool documents_alone) {
    inputs.documents_alone = documents_alone;
    return memory_forecast(with_batch(inputs, 1, tokens)).peak[attention];
  };
  const int64_t long_enough = least_tokens_alone(4, 64), tokens = long_enough + 1;
  const int64_t dq_dk_dv = tokens * (4 + 2 * 2) * 64 * 2, lse = tokens * 4 * 4;
  EXPECT_EQ(peak_with(tokens, true), peak_with(tokens, false) + dq_dk_dv + lse);
  EXPECT_EQ(peak_with(long_enough, true), peak_with(long_enough, false));
  inputs.model.causal_tokens = long_enough - 1;  // longer documents see a window
  EXPECT_EQ(peak_with(tokens, true), peak_with(tokens, false));
  inputs.model.causal_tokens = long_enough;
  EXPECT_GT(peak_with(tokens, true), peak_with(tokens, false));
}

// A backward of 2^20 tokens is a call for each of two groups of two heads (kernels/backward_heads.h).
TEST(MemoryFormulas, count_what_a_long_backward_in_calls_of_a_few_heads_holds) {
  constexpr int64_t kTokens = int64_t{1} << 20;
  ForecastInputs inputs = inputs_of(grouped_model(), 1);  // 4 query and 2 key/value heads of 64
  inputs.device_is_host = false;
  inputs.storage_bytes = inputs.tile_bytes = 2;
  inputs.fused_on_gpu = true;
  const auto backward_bytes = [&] {
    return attention_snapshots(with_batch(inputs, 1, kTokens), 4, 2).backward.front().attention;
  };
  const int64_t results = kTokens * (4 + 2 * 2) * 64 * 2;
  const int64_t dq_and_sums = kTokens * 2 * (64 + 1) * 4, dk_and_dv = 2 * kTokens * 2 * 64 * 2;
  const int64_t of_a_call = results / 2 + kTokens * 2 * 4, copies_of_o_and_d_o = 2 * kTokens * 2 * 64 * 2;
  EXPECT_EQ(backward_bytes(), results + dq_and_sums + dk_and_dv + of_a_call + copies_of_o_and_d_o);
  inputs.fused_on_gpu = false;  // a CPU takes all heads
  EXPECT_EQ(backward_bytes(), results);
}

// A forward of 300,000 tokens in three blocks of 100,096 rows and as many keys (kernels/key_blocks.h).
TEST(MemoryFormulas, count_what_a_long_forward_in_blocks_of_keys_holds) {
  ForecastInputs inputs = inputs_of(grouped_model(), 1);  // 4 query heads of 64
  inputs.device_is_host = false;
  inputs.storage_bytes = inputs.tile_bytes = 2;
  inputs.fused_on_gpu = true;
  const auto forward_with = [&](int64_t tokens, bool key_blocks) {
    inputs.key_blocks = key_blocks;
    return attention_snapshots(with_batch(inputs, 1, tokens), 4, 2).forward.front().attention;
  };
  constexpr int64_t kTokens = 300'000, kBlock = 100'096 * 4;  // rows x heads
  EXPECT_EQ(forward_with(kTokens, true) - forward_with(kTokens, false),
            3 * kBlock * (64 * 2 + 4) + kBlock * 64 * 4 + 2 * kBlock * 4);
  EXPECT_EQ(forward_with(131'072, true), forward_with(131'072, false));
  inputs.model.causal_tokens = 4096;  // longer documents see a window
  EXPECT_EQ(forward_with(kTokens, true), forward_with(kTokens, false));
  inputs.model.causal_tokens = 0;  // an encoder
  EXPECT_GT(forward_with(kTokens, true), forward_with(kTokens, false));
  inputs.model.head_dim = 256;  // not cuDNN's
  EXPECT_EQ(forward_with(kTokens, true), forward_with(kTokens, false));
}

// kernels/flash4_sizes.h
TEST(MemoryFormulas, count_flash4_without_blocks_of_keys_and_with_a_second_sum_for_each_query) {
  constexpr int64_t kTokens = 300'000, kPadded = 300'032;
  ForecastInputs inputs = inputs_of(grouped_model(), 1);  // 4 query and 2 key/value heads of 64
  inputs.device_is_host = false;
  inputs.storage_bytes = inputs.tile_bytes = 2;
  inputs.fused_on_gpu = inputs.key_blocks = true;
  const auto snapshots = [&](bool flash4, int64_t heads) {
    inputs.flash4 = flash4;
    return attention_snapshots(with_batch(inputs, 1, kTokens), heads, 2);
  };
  const auto forward = [&](bool flash4, int64_t heads) {
    return snapshots(flash4, heads).forward.front().attention;
  };
  const auto backward = [&](bool flash4, int64_t heads) {
    return snapshots(flash4, heads).backward.front().attention;
  };
  EXPECT_EQ(forward(true, 4), kTokens * 4 * (64 * 2 + 4));  // o and the log-sum-exp alone
  EXPECT_GT(forward(false, 4), forward(true, 4));
  EXPECT_EQ(backward(true, 4), backward(false, 4) + kPadded * 4 * 4);
  inputs.model.heads = 18;  // nine a key/value head: another kernel's
  EXPECT_EQ(forward(true, 18), forward(false, 18));
  EXPECT_EQ(backward(true, 18), backward(false, 18));
}

TEST(ModelSizes, say_to_which_length_a_document_is_a_causal_square) {
  const auto causal_tokens = [](Causality causality, std::vector<int64_t> windows) {
    ModelConfig config = parse_model_config(grouped_model(), "grouped");
    config.causality = causality;
    config.layer_window = std::move(windows);
    return model_sizes(config, make_model_layout(config)).causal_tokens;
  };
  constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(causal_tokens(Causality::causal, {0, 0}), kAny);
  EXPECT_EQ(causal_tokens(Causality::causal, {4096, 0}), kAny);
  EXPECT_EQ(causal_tokens(Causality::causal, {4096, 512}), 4096);
  EXPECT_EQ(causal_tokens(Causality::full, {0, 0}), 0);
}

// A call for the two query heads of each key/value head.
TEST(MemoryFormulas, count_what_efficient_attention_holds_on_a_gpu_in_fp32) {
  ForecastInputs inputs = inputs_of(grouped_model(), 1);
  inputs.device_is_host = false;
  inputs.storage_bytes = inputs.tile_bytes = 4;
  const int64_t without = memory_forecast(inputs).peak[attention];
  inputs.fused_on_gpu = true;
  const int64_t dq_and_sums = 4096 * 2 * (64 + 1) * 4, dk_and_dv_of_query_heads = 2 * 4096 * 2 * 64 * 4,
                copies = 3 * 4096 * 2 * 64 * 4;
  EXPECT_EQ(memory_forecast(inputs).peak[attention],
            without + dq_and_sums + dk_and_dv_of_query_heads + copies);
}

TEST(MemoryFormulas, each_zero_stage_holds_less) {
  ForecastInputs inputs = inputs_of(grouped_model(), 8);
  std::vector<MemoryForecast> stages;
  stages.reserve(4);
  for (inputs.zero = 0; inputs.zero <= 3; ++inputs.zero) stages.push_back(memory_forecast(inputs));
  EXPECT_EQ(stages[1].peak[gradients], stages[0].peak[gradients]);
  EXPECT_LT(stages[1].peak[optimizer], stages[0].peak[optimizer] / 7);
  EXPECT_LT(stages[2].peak[gradients], stages[1].peak[gradients] * 3 / 4);
  EXPECT_EQ(stages[2].peak[parameters], stages[1].peak[parameters]);
  EXPECT_LT(stages[3].peak[parameters], stages[2].peak[parameters] * 3 / 4);
}

std::vector<std::string> names_of(const std::vector<MemoryOption>& options) {
  std::vector<std::string> names;
  names.reserve(options.size());
  for (const MemoryOption& option : options) names.push_back(option.option);
  return names;
}

TEST(MemoryOptions, are_those_that_the_run_does_not_use_with_what_they_save) {
  Json deep = grouped_model();
  deep["num_hidden_layers"] = 12;
  ForecastInputs inputs = inputs_of(deep, 4);
  const auto usual = names_of(memory_options(inputs));
  for (const char* option : {"--recompute full", "--offload_activations disk", "--zero 1", "--zero 3",
                             "--offload_optimizer disk", "--logits_tile_tokens 128", "--max_seq_length 2048"})
    EXPECT_THAT(usual, ::testing::Contains(option));
  for (const MemoryOption& option : memory_options(inputs)) {
    EXPECT_GT(option.saved_share, 0) << option.option;
    EXPECT_LE(option.saved_share, 1) << option.option;
    if (option.option == "--zero 1") {
      EXPECT_NEAR(option.saved_share, 0.75, 1e-3);
    }
  }

  inputs.zero = 3;
  inputs.recompute = {Recompute::full, 4, 1, inputs.model.layers};
  inputs.offload.optimizer = Offload::disk;
  inputs.update_in_backward = true;
  const auto thrifty = names_of(memory_options(inputs));
  for (const std::string& option : thrifty) {
    EXPECT_EQ(option.find("--zero"), std::string::npos) << option;
    EXPECT_EQ(option.find("--recompute"), std::string::npos) << option;
    EXPECT_EQ(option.find("--offload_optimizer"), std::string::npos) << option;
  }
  EXPECT_THAT(thrifty, ::testing::Contains("--offload_params disk"));
}

}  // namespace
}  // namespace trireme
