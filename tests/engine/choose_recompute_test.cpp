// --recompute auto: the rule against every other answer that it could have given, what ranks agree on, and
// that a run keeps what was chosen. In the binary that counts memory.
#include "trireme/forecast/choose_recompute.h"

#include <algorithm>
#include <functional>
#include <mutex>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/comm/thread_world.h"
#include "trireme/device/cpu_caching_allocator.h"
#include "trireme/device/memory_budget.h"
#include "trireme/engine/agree_on_memory_fit.h"
#include "trireme/engine/assemble.h"
#include "trireme/engine/check_options.h"
#include "trireme/engine/make_forecast_inputs.h"
#include "trireme/forecast/memory_forecast.h"
#include "trireme/forecast/recompute_cost.h"

#include "tests/engine/tiny_model.h"
#include "tests/support/error_message.h"

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::TemporaryFolder;

// One rank with a model of `layers`, and 2 samples of 3,000 tokens.
ForecastInputs deep_inputs(int64_t layers) {
  ForecastInputs inputs;
  ModelConfig config;
  config.family = model_families().front();
  config.num_hidden_layers = layers;
  config.hidden_size = 256;
  config.intermediate_size = 704;
  config.mlp_kept_width = 2 * 704;
  config.num_attention_heads = 8;
  config.num_key_value_heads = 2;
  config.head_dim = 32;
  config.vocab_size = 1000;
  inputs.model = model_sizes(config, make_model_layout(config));
  inputs.rank_heads = 8;
  inputs.rank_kv_heads = 2;
  inputs.packed_heads = 12;
  inputs.tile_tokens = 512;
  inputs.logits_tile_tokens = 256;
  inputs.recompute.checkpoint_every = 1;
  return with_batch(inputs, 2, 3000);
}

ForecastInputs changed(ForecastInputs inputs, const std::function<void(ForecastInputs&)>& change) {
  change(inputs);
  return with_batch(inputs, inputs.batch, inputs.tokens);
}

// In groups, or offloaded, attention's output alone is kept.
int64_t last_position(const ForecastInputs& inputs) {
  const bool alone = inputs.recompute.checkpoint_every > 1 || inputs.offload.activations != Offload::none;
  return (alone ? 1 : 3) * inputs.model.layers;
}

// The models of this file have more tokens than hidden width: attention first, then q, k and v, then the MLP.
RecomputePlan plan_with(int64_t position, const ForecastInputs& inputs) {
  const int64_t layers = inputs.model.layers, every = inputs.recompute.checkpoint_every;
  if (position == 0) return RecomputePlan{Recompute::full, every, 1, layers};
  if (position == 3 * layers) return RecomputePlan{Recompute::none, every, 1, layers};
  const auto share = [&](int64_t before) {
    return static_cast<double>(std::clamp<int64_t>(position - before, 0, layers)) /
           static_cast<double>(layers);
  };
  return RecomputePlan{Recompute::keep_attention, every, share(0), layers, share(layers), share(2 * layers)};
}

// The forecast at position 0, 1, ... the last.
std::vector<int64_t> forecasts(ForecastInputs inputs) {
  std::vector<int64_t> bytes;
  for (int64_t position = 0; position <= last_position(inputs); ++position) {
    inputs.recompute = plan_with(position, inputs);
    bytes.push_back(memory_forecast(inputs).peak_total_bytes);
  }
  return bytes;
}

RecomputeChoice choose(const ForecastInputs& inputs, int64_t budget_bytes) {
  return choose_recompute(inputs, recompute_ladder(inputs, inputs.recompute.checkpoint_every), budget_bytes);
}

// Where none fits, what needs least.
int64_t most_that_fit(const std::vector<int64_t>& of_layers, int64_t budget_bytes) {
  int64_t most = std::ranges::min_element(of_layers) - of_layers.begin();
  for (size_t keeping = 0; keeping < of_layers.size(); ++keeping)
    if (of_layers[keeping] <= budget_bytes) most = static_cast<int64_t>(keeping);
  return most;
}

const std::vector<std::pair<const char*, ForecastInputs>>& cases() {
  static const std::vector<std::pair<const char*, ForecastInputs>> list = {
      {"one rank", deep_inputs(12)},
      {"one layer", deep_inputs(1)},
      {"2 x 2 ranks, ZeRO 3", changed(deep_inputs(7),
                                      [](ForecastInputs& s) {
                                        s.ulysses = s.ring = 2;
                                        s.ranks = 4;
                                        s.sp_rank = s.rank = 3;
                                        s.zero = 3;
                                        s.rank_heads = 4;
                                        s.rank_kv_heads = 1;
                                      })},
      {"bf16, SGD", changed(deep_inputs(12),
                            [](ForecastInputs& s) {
                              s.storage_bytes = s.tile_bytes = 2;
                              s.moments = 0;
                            })},
      {"inputs of every 3 layers",
       changed(deep_inputs(10), [](ForecastInputs& s) { s.recompute.checkpoint_every = 3; })},
      {"the input of the first layer alone",
       changed(deep_inputs(10), [](ForecastInputs& s) { s.recompute.checkpoint_every = 10; })},
      {"activations on disk",
       changed(deep_inputs(12), [](ForecastInputs& s) { s.offload.activations = Offload::disk; })},
      {"updates in backward",
       changed(deep_inputs(12), [](ForecastInputs& s) { s.update_in_backward = true; })},
  };
  return list;
}

TEST(ChooseRecompute, goes_to_the_furthest_position_whose_forecast_fits) {
  for (const auto& [name, inputs] : cases()) {
    SCOPED_TRACE(name);
    const std::vector<int64_t> of_layers = forecasts(inputs);
    std::set<int64_t> budgets{0, 1, of_layers.front() / 2, of_layers.back() * 2};
    for (const int64_t threshold : of_layers) budgets.insert({threshold - 1, threshold, threshold + 1});
    int64_t before = 0;
    for (const int64_t budget : budgets) {
      const RecomputeChoice choice = choose(inputs, budget);
      const int64_t expected = most_that_fit(of_layers, budget);
      EXPECT_EQ(choice.rung, expected) << "of " << budget;
      EXPECT_EQ(choice.plan, plan_with(expected, inputs));
      EXPECT_EQ(choice.budget_bytes, budget);
      EXPECT_EQ(choice.expected_bytes, of_layers[static_cast<size_t>(expected)]);
      EXPECT_EQ(choice.fits(), of_layers[static_cast<size_t>(expected)] <= budget);
      EXPECT_GE(choice.rung, before) << "more memory, less kept";
      before = choice.rung;
    }
    EXPECT_EQ(before, last_position(inputs));
  }
}

TEST(ChooseRecompute, one_byte_decides_over_a_layer) {
  const ForecastInputs inputs = deep_inputs(12);
  const std::vector<int64_t> of_layers = forecasts(inputs);
  // The last layer's o is there at the fullest moment in any case.
  for (int64_t keeping = 2; keeping <= 36; ++keeping) {
    if (keeping < 36 && keeping % 12 <= 1) continue;  // so are its q, k and v, and what its MLP keeps
    const int64_t threshold = of_layers[static_cast<size_t>(keeping)];
    ASSERT_GT(threshold, of_layers[static_cast<size_t>(keeping) - 1]);
    EXPECT_EQ(choose(inputs, threshold).rung, keeping);
    EXPECT_EQ(choose(inputs, threshold - 1).rung, keeping - 1);
  }
}

// Of 12,288 tokens and 32 layers that nothing but their activations fills: in groups of three or four at
// most.
ForecastInputs long_and_deep() {
  return changed(deep_inputs(32), [](ForecastInputs& s) { s.batch = 1, s.tokens = 12288; });
}

TEST(RecomputeLadder, goes_from_the_plan_that_makes_most_again_to_the_one_that_makes_least) {
  const ForecastInputs inputs = long_and_deep();
  const std::vector<RecomputePlan> ladder = recompute_ladder(inputs, std::nullopt);
  ASSERT_EQ(sizes_of_groups({}, 32, Offload::none).most, 4);
  EXPECT_EQ(sizes_of_groups({}, 32, Offload::cpu).most, 8);
  EXPECT_EQ(sizes_of_groups({}, 3, Offload::cpu).most, 1);
  EXPECT_EQ(ladder.size(), 3 * 32 + 1 + 3 * 33);
  EXPECT_EQ(ladder.front().description(), "full, inputs of every 4 layers");
  EXPECT_EQ(ladder.back().description(), "none");
  for (size_t rung = 1; rung < ladder.size(); ++rung)
    EXPECT_GE(product_flops_made_again(ladder[rung - 1], inputs),
              product_flops_made_again(ladder[rung], inputs));
  for (const int64_t every : {1, 2, 7})
    for (const RecomputePlan& plan : recompute_ladder(inputs, every)) EXPECT_EQ(plan.checkpoint_every, every);
}

// Whatever else fits makes more again.
TEST(RecomputeLadder, of_all_plans_that_fit_the_one_that_makes_least_again_is_chosen) {
  ForecastInputs inputs = long_and_deep();
  const std::vector<RecomputePlan> ladder = recompute_ladder(inputs, std::nullopt);
  std::set<int64_t> groups;
  inputs.recompute = {Recompute::none, 1, 1, 32};
  for (int64_t budget = memory_forecast(inputs).peak_total_bytes;; budget -= budget / 16) {
    const RecomputeChoice choice = choose_recompute(inputs, ladder, budget);
    if (!choice.fits()) {
      // Then nothing does, and nothing needs less.
      for (const RecomputePlan& plan : ladder) {
        inputs.recompute = plan;
        EXPECT_GE(memory_forecast(inputs).peak_total_bytes, choice.expected_bytes);
      }
      EXPECT_GT(choice.expected_bytes, budget);
      break;
    }
    groups.insert(choice.plan.checkpoint_every);
    const double chosen = product_flops_made_again(choice.plan, inputs);
    for (const RecomputePlan& plan : ladder) {
      inputs.recompute = plan;
      if (memory_forecast(inputs).peak_total_bytes > budget) continue;
      EXPECT_GE(product_flops_made_again(plan, inputs), chosen)
          << plan.description() << " where " << choice.plan.description() << " is chosen";
    }
  }
  EXPECT_EQ(groups, (std::set<int64_t>{1, 2, 3, 4}));
}

// Less that is made again is not always more that is held: what the tightest rank takes may not fit another.
TEST(RecomputeLadder, ranks_take_a_rung_that_fits_them_all) {
  const auto largest = [](std::vector<int64_t> a, const std::vector<int64_t>& b) {
    std::ranges::transform(a, b, a.begin(), [](int64_t x, int64_t y) { return std::max(x, y); });
    return a;
  };
  const std::vector<int64_t> of_host{0, 0, 7, 0, 9}, of_device{3, 0, 0, 4, 2};
  EXPECT_EQ(rung_that_fits(of_host), 3);
  EXPECT_EQ(rung_that_fits(of_device), 2);
  EXPECT_EQ(rung_that_fits(largest(of_host, of_device)), 1);
  EXPECT_EQ(rung_that_fits({5, 2, 4, 2}), 1) << "none fits";
}

TEST(RecomputeOptions, a_fraction_or_a_budget_beside_the_wrong_policy_is_refused_with_what_would_work) {
  EXPECT_THAT(testing::message_of<ConfigError>([] {
                check_engine_options({.recompute = {.policy = Recompute::automatic, .keep_fraction = 0.5}});
              }),
              AllOf(HasSubstr("--keep_fraction 0.5"), HasSubstr("--recompute keep_attention with it")));
  EXPECT_NO_THROW(
      check_engine_options({.recompute = {.policy = Recompute::automatic, .checkpoint_every = 2}}));
  EXPECT_NO_THROW(check_engine_options({.recompute = {.policy = Recompute::none}}));
  EXPECT_THROW((RecomputePlan{Recompute::automatic, 1, 1, 4}.kept_by_forward(0)), InternalError);
}

// A model of four layers whose attention outputs are a good part of a step.
Json four_layers() {
  Json config = testing::tiny_llama_config(4, 2);
  config.update({{"hidden_size", 128},
                 {"head_dim", 64},
                 {"intermediate_size", 320},
                 {"num_hidden_layers", 4},
                 {"vocab_size", 500},
                 {"max_position_embeddings", 4096}});
  return config;
}

class Auto : public ::testing::Test {
 protected:
  static constexpr int64_t kSamples = 1, kTokens = 2048;

  static void SetUpTestSuite() { install_cpu_caching_allocator(); }
  Auto() { testing::write_tiny_model(folder_.path(), four_layers()); }

  static EngineOptions options_of(int ranks) {
    EngineOptions options;
    options.ulysses = ranks;
    options.tile_tokens = 128;
    options.logits_tile_tokens = 64;
    options.planned_batch = {kSamples, kTokens};
    return options;
  }
  // Runs `body` on every rank's engine; `change` may differ between ranks.
  void on_engines(int ranks, const std::function<void(EngineOptions&, int rank)>& change,
                  const std::function<void(Engine&, int rank)>& body) const {
    run_ranks_as_threads(ranks, [&](World& world) {
      EngineOptions options = options_of(ranks);
      change(options, world.rank());
      const auto engine = assemble(world, folder_.path(), options);
      body(*engine, world.rank());
    });
  }
  // Each rank's forecasts with attention kept on 0, 1, ... 4 layers.
  std::vector<std::vector<int64_t>> forecasts_of(int ranks) const {
    std::vector<std::vector<int64_t>> of_ranks(static_cast<size_t>(ranks));
    on_engines(
        ranks, [](EngineOptions& options, int) { options.recompute.policy = Recompute::full; },
        [&](Engine& engine, int rank) {
          of_ranks[static_cast<size_t>(rank)] = forecasts(engine.forecast_inputs(kSamples, kTokens));
        });
    return of_ranks;
  }
  static TokenBatch batch_of(Engine& engine, uint64_t step) {
    return testing::slice_of_batch(kSamples, kTokens, 500, step, engine.mesh().ulysses->size(),
                                   engine.mesh().ulysses->rank());
  }

  TemporaryFolder folder_;
};

TEST_F(Auto, ranks_with_different_room_do_what_the_least_of_them_can) {
  const auto of_ranks = forecasts_of(2);
  for (const int tight : {0, 1}) {
    std::mutex mutex;
    std::set<std::string> descriptions;
    on_engines(
        2,
        [&](EngineOptions& options, int rank) {
          const auto& mine = of_ranks[static_cast<size_t>(rank)];
          options.memory_budget_bytes = rank == tight ? mine[2] : 2 * mine.back();
        },
        [&](Engine& engine, int) {
          EXPECT_EQ(engine.options().recompute.policy, Recompute::keep_attention);
          EXPECT_EQ(engine.options().recompute.keep_fraction, 0.5);
          ASSERT_TRUE(engine.recompute_choice().has_value());
          EXPECT_EQ(engine.recompute_choice()->rung, 2);
          EXPECT_EQ(engine.recompute_choice()->budget_bytes, of_ranks[static_cast<size_t>(tight)][2]);
          EXPECT_EQ(engine.forecast_inputs(1, 1).recompute.layers_keeping(KeptPart::attention), 2);
          const std::lock_guard lock(mutex);
          descriptions.insert(engine.description());
        });
    ASSERT_EQ(descriptions.size(), 1U);
    EXPECT_THAT(*descriptions.begin(), HasSubstr("recompute keep_attention on 2 of 4 layers, chosen: "));
  }
}

TEST_F(Auto, any_budget_keeps_the_bytes_that_were_forecast_and_the_bits_of_full) {
  const std::vector<int64_t> of_positions = forecasts_of(1)[0];
  struct Run {
    std::vector<double> losses;
    std::vector<at::Tensor> units;
    MemoryState state;
    MemoryForecast forecast;
  };
  const auto train = [&](const std::function<void(EngineOptions&)>& change) {
    Run run;
    on_engines(
        1, [&](EngineOptions& options, int) { change(options); },
        [&](Engine& engine, int) {
          for (uint64_t step = 0; step < 2; ++step)
            run.losses.push_back(engine.train_step({batch_of(engine, step)}, 1e-3).loss);
          run.state = engine.memory_account()->state();
          run.forecast = memory_forecast(engine.forecast_inputs(kSamples, kTokens));
          for (size_t unit = 0; unit < engine.layout().units.size(); ++unit)
            run.units.push_back(engine.unit_values(static_cast<int>(unit)).clone());
        });
    return run;
  };
  const Run full = train([](EngineOptions& o) { o.recompute.policy = Recompute::full; });
  // o and lse; q, k and v; x1, gate|up: of a layer.
  constexpr int64_t kAttention_bytes = 2048 * 4 * 64 * 4 + 4 * 2048 * 4, kQkv_bytes = 2048 * 8 * 64 * 4,
                    kMlp_bytes = 2048 * (128 + 2 * 320) * 4;
  for (const int64_t position : {2, 6, 10, 12}) {
    SCOPED_TRACE(::testing::Message() << "position " << position);
    const auto at_position = static_cast<size_t>(position);
    const int64_t budget = position == 12 ? 2 * of_positions[12]
                                          : (of_positions[at_position] + of_positions[at_position + 1]) / 2;
    const Run middle = train([&](EngineOptions& o) { o.memory_budget_bytes = budget; });
    constexpr MemoryCategory kActivations = MemoryCategory::activations;
    const auto measured = static_cast<double>(middle.state.peak[kActivations]);
    const auto expected = static_cast<double>(middle.forecast.peak[kActivations]);
    EXPECT_NEAR(measured, expected, 0.02 * expected);
    EXPECT_EQ(middle.forecast.peak_total_bytes, of_positions[at_position]);
    EXPECT_LE(middle.state.peak_total_bytes, budget);
    const int64_t more = std::min<int64_t>(position, 4) * kAttention_bytes +
                         std::clamp<int64_t>(position - 4, 0, 4) * kQkv_bytes +
                         std::clamp<int64_t>(position - 8, 0, 4) * kMlp_bytes;
    EXPECT_NEAR(static_cast<double>(middle.state.peak[kActivations] - full.state.peak[kActivations]),
                static_cast<double>(more), 0.02 * static_cast<double>(more));

    EXPECT_EQ(middle.losses, full.losses);
    ASSERT_EQ(middle.units.size(), full.units.size());
    for (size_t unit = 0; unit < full.units.size(); ++unit)
      EXPECT_TRUE(at::equal(middle.units[unit], full.units[unit])) << "unit " << unit;
  }
}

TEST_F(Auto, keeps_everything_where_this_machine_has_the_room) {
  on_engines(
      2, [](EngineOptions&, int) {},
      [](Engine& engine, int) {
        ASSERT_TRUE(engine.recompute_choice().has_value());
        EXPECT_TRUE(engine.recompute_choice()->fits());
        EXPECT_GT(engine.recompute_choice()->budget_bytes, engine.recompute_choice()->expected_bytes);
        EXPECT_EQ(engine.options().recompute.policy, Recompute::none);
        EXPECT_EQ(engine.options().recompute.keep_fraction, 1);
        EXPECT_THAT(engine.description(), HasSubstr("recompute none, chosen: "));
        EXPECT_THAT(shortage_warning(*engine.memory_fit(), engine.forecast_inputs(kSamples, kTokens)),
                    IsEmpty());
      });
}

TEST_F(Auto, plans_with_the_groups_that_it_is_given) {
  on_engines(
      1, [](EngineOptions& options, int) { options.recompute.checkpoint_every = 2; },
      [](Engine& engine, int) {
        EXPECT_EQ(engine.options().recompute.policy, Recompute::keep_attention);
        EXPECT_THAT(engine.description(),
                    HasSubstr("recompute keep_attention, inputs of every 2 layers, chosen: "));
        EXPECT_EQ(engine.recompute_choice()->expected_bytes,
                  memory_forecast(engine.forecast_inputs(kSamples, kTokens)).peak_total_bytes);
      });
}

TEST_F(Auto, plans_with_the_host_memory_that_it_is_told_of_in_place_of_what_the_machine_says) {
  constexpr int64_t kLimit_bytes = int64_t{1} << 50;
  on_engines(
      2, [](EngineOptions& options, int) { options.host_memory_limit_bytes = kLimit_bytes; },
      [](Engine& engine, int) {
        ASSERT_TRUE(engine.recompute_choice().has_value());
        EXPECT_EQ(engine.recompute_choice()->budget_bytes, memory_budget_bytes(at::kCPU, kLimit_bytes, 2));
      });
}

TEST_F(Auto, says_what_would_help_where_not_even_full_fits) {
  on_engines(
      1, [](EngineOptions& options, int) { options.memory_budget_bytes = int64_t{1} << 20; },
      [](Engine& engine, int) {
        EXPECT_EQ(engine.options().recompute.policy, Recompute::full);
        ASSERT_TRUE(engine.recompute_choice().has_value());
        EXPECT_FALSE(engine.recompute_choice()->fits());
        EXPECT_THAT(engine.description(),
                    AllOf(HasSubstr("recompute full, chosen, though the formulas expect "),
                          HasSubstr(" of 1.0 MiB")));
        EXPECT_THAT(shortage_warning(*engine.memory_fit(), engine.forecast_inputs(kSamples, kTokens)),
                    AllOf(HasSubstr("even with --recompute full"), HasSubstr("--zero 1"),
                          HasSubstr("--max_seq_length 1024 (saves about ")));
        // It is a warning: what the formulas say does not stop a step.
        EXPECT_GT(engine.train_step({batch_of(engine, 0)}, 1e-3).loss, 0);
      });
}

TEST_F(Auto, chooses_nothing_without_a_batch_for_an_evaluation_or_beside_another_policy) {
  const auto expect = [&](const std::function<void(EngineOptions&)>& change, Recompute policy) {
    on_engines(
        1, [&](EngineOptions& options, int) { change(options); },
        [&](Engine& engine, int) {
          EXPECT_FALSE(engine.recompute_choice().has_value());
          EXPECT_EQ(engine.options().recompute.policy, policy);
          EXPECT_EQ(engine.options().recompute.keep_fraction, 1);
          EXPECT_THAT(engine.description(), Not(HasSubstr("chosen")));
        });
  };
  expect([](EngineOptions& o) { o.planned_batch = {}; }, Recompute::keep_attention);
  expect([](EngineOptions& o) { o.planned_batch.tokens = 0; }, Recompute::keep_attention);
  expect([](EngineOptions& o) { o.purpose = Purpose::evaluation; }, Recompute::full);
  expect([](EngineOptions& o) { o.recompute.policy = Recompute::none; }, Recompute::none);
  // Fewer tokens than ranks: the batch itself is refused.
  on_engines(
      2, [](EngineOptions& o, int) { o.planned_batch.tokens = 1; },
      [](Engine& engine, int) { EXPECT_FALSE(engine.recompute_choice().has_value()); });
}

TEST_F(Auto, a_budget_that_nothing_would_plan_with_is_refused) {
  const auto refusal = [&](const std::function<void(EngineOptions&)>& change) {
    return testing::message_of<ConfigError>([&] {
      on_engines(
          1, [&](EngineOptions& options, int) { change(options); }, [](Engine&, int) {});
    });
  };
  EXPECT_THAT(refusal([](EngineOptions& o) {
                o.recompute.policy = Recompute::full;
                o.memory_budget_bytes = 1 << 30;
              }),
              AllOf(HasSubstr("--memory_budget"), HasSubstr("--recompute is full")));
  EXPECT_THAT(refusal([](EngineOptions& o) {
                o.purpose = Purpose::evaluation;
                o.memory_budget_bytes = 1 << 30;
              }),
              AllOf(HasSubstr("--memory_budget"), HasSubstr("evaluation")));
  EXPECT_THAT(refusal([](EngineOptions& o) { o.memory_budget_bytes = -1; }), HasSubstr("0 or more"));
  EXPECT_THROW(refusal([](EngineOptions& o) {
                 o.planned_batch = {};
                 o.memory_budget_bytes = 1 << 30;
               }),
               InternalError);
}

}  // namespace
}  // namespace trireme
