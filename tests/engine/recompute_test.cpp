// Recomputation: whatever a plan keeps, losses and gradients are those of keeping everything, to the bit;
// what it costs in exchanges, attention passes, matmuls and bytes is what recompute_plan.h and layer_runner.h
// say.
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/comm/thread_world.h"
#include "trireme/engine/assemble.h"
#include "trireme/engine/check_options.h"

#include "tests/engine/tiny_model.h"
#include "tests/engine/watched_pass.h"
#include "tests/support/unit_parameters.h"
#include "tests/support/without_onednn.h"

namespace trireme::recompute_test {
namespace {

using testing::PassRecord;
using testing::WatchedRun;

constexpr int64_t kLayers = 5;

Json with_five_layers(Json config) {
  config["num_hidden_layers"] = kLayers;
  return config;
}

Json five_layers(bool tied = false) {
  Json config = with_five_layers(testing::tiny_llama_config());
  config["tie_word_embeddings"] = tied;
  return config;
}

// Norms behind each part keep other tensors than Llama's.
Json five_gemma3_layers() {
  return with_five_layers(testing::tiny_gemma3_config());
}

// Layers of two kinds; `experts` beside their MLPs keep what goes into norms of their own.
Json five_gemma4_layers(bool experts = false) {
  Json config =
      with_five_layers(experts ? testing::tiny_gemma4_experts_config() : testing::tiny_gemma4_config());
  config["layer_types"] = Json::array();
  for (int64_t layer = 0; layer < kLayers; ++layer)
    config["layer_types"].push_back(layer % 2 == 0 ? "full_attention" : "sliding_attention");
  return config;
}

// The last three take keys of the first two, and all are told of their tokens.
Json five_gemma4_e2b_layers() {
  Json config = with_five_layers(testing::tiny_gemma4_e2b_config());
  config["num_kv_shared_layers"] = 3;
  for (const char* type : {"sliding_attention", "full_attention"}) config["layer_types"].push_back(type);
  return config;
}

// Keeps logits beside gate|up, which the router's backward reads where weights do not sum to one.
Json five_mixture_layers() {
  Json config = with_five_layers(testing::tiny_mixture_config());
  config["norm_topk_prob"] = false;
  return config;
}

// An encoder, whose head reads the embedding's matrix.
Json five_bert_layers() {
  return with_five_layers(testing::tiny_bert_config());
}

RecomputePlan plan_of(Recompute policy, int64_t every = 1, double fraction = 1) {
  return RecomputePlan{policy, every, fraction, kLayers};
}

// Parts beside each other in every way: of 5 layers so many keep attention, q k v, what the MLP keeps.
std::vector<RecomputePlan> plans_of_parts() {
  std::vector<RecomputePlan> plans;
  for (const auto& [attention, qkv, mlp] : std::vector<std::tuple<double, double, double>>{
           {1, 1, 0.5}, {1, 0.25, 0}, {0.5, 1, 0.25}, {0, 1, 0}, {0, 0.25, 1}, {0.25, 0, 1}, {1, 0, 1}})
    plans.push_back({Recompute::keep_attention, 1, attention, kLayers, qkv, mlp});
  return plans;
}

std::vector<RecomputePlan> all_plans() {
  std::vector<RecomputePlan> plans = plans_of_parts();
  for (const int64_t every : {int64_t{1}, int64_t{2}, int64_t{3}, kLayers + 1}) {
    plans.push_back(plan_of(Recompute::full, every));
    for (const double fraction : {0.25, 0.5, 1.0}) {
      plans.push_back(plan_of(Recompute::keep_attention, every, fraction));
      if (every == 1) plans.push_back(plan_of(Recompute::none, 1, fraction));
    }
  }
  return plans;
}

std::string name_of(const RecomputePlan& plan) {
  const char* policy = plan.policy == Recompute::full   ? "full"
                       : plan.policy == Recompute::none ? "none"
                                                        : "keep_attention";
  return cat(policy, ", every ", plan.checkpoint_every, ", fraction ", plan.keep_fraction, ", of q k v ",
             plan.keep_qkv_fraction, ", of the MLP ", plan.keep_mlp_fraction);
}

// What layer `layer` keeps, told again from the options.
struct Kept {
  bool attention = false, qkv = false, mlp = false, input = false;
};
Kept kept_of(const RecomputePlan& plan, int64_t layer) {
  const auto follows = [&](double fraction) {
    const int64_t last = fraction == 0 ? 0 : fraction == 0.25 ? 1 : fraction == 0.5 ? 3 : kLayers;
    return layer >= kLayers - last;
  };
  Kept kept;
  if (plan.policy != Recompute::full) kept.attention = follows(plan.keep_fraction);
  const bool none = plan.policy == Recompute::none;
  kept.qkv = follows(none ? plan.keep_fraction : plan.keep_qkv_fraction);
  kept.mlp = follows(none ? plan.keep_fraction : plan.keep_mlp_fraction);
  kept.input = layer % plan.checkpoint_every == 0;
  return kept;
}

bool last_of_group(const RecomputePlan& plan, int64_t layer) {
  return (layer + 1) % plan.checkpoint_every == 0 || layer + 1 == kLayers;
}

void expect_same_bits(const std::vector<PassRecord>& a, const std::vector<PassRecord>& b,
                      const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t rank = 0; rank < a.size(); ++rank) {
    EXPECT_EQ(a[rank].loss_sum, b[rank].loss_sum) << what;
    ASSERT_EQ(a[rank].gradients.size(), b[rank].gradients.size());
    for (size_t unit = 0; unit < b[rank].gradients.size(); ++unit)
      EXPECT_TRUE(at::equal(a[rank].gradients[unit], b[rank].gradients[unit]))
          << what << ": unit " << unit << " of rank " << rank;
  }
}

TEST(Recompute, every_plan_gives_losses_and_gradients_of_keeping_everything_to_the_bit) {
  for (const Json& model :
       {five_layers(), five_layers(/*tied=*/true), five_gemma3_layers(), five_gemma4_layers(),
        with_five_layers(testing::tiny_qwen3_5_config()),  // the first one has a DeltaNet
        five_mixture_layers(),
        with_five_layers(
            testing::tiny_qwen3_next_config()),  // keeps what the shared expert needs behind that
        five_gemma4_layers(/*experts=*/true), five_gemma4_e2b_layers(), five_bert_layers()}) {
    testing::TemporaryFolder folder;
    testing::write_tiny_model(folder.path(), model);
    for (const int ranks : {1, 2}) {
      const WatchedRun run{.ranks = ranks};
      const auto none = testing::run_pass(folder.path(), run, plan_of(Recompute::none));
      for (const at::Tensor& gradient : none[0].gradients)
        EXPECT_GT(gradient.abs().max().item<float>(), 1e-3);
      for (const RecomputePlan& plan : all_plans())
        expect_same_bits(testing::run_pass(folder.path(), run, plan), none,
                         cat(name_of(plan), ", ", ranks, " ranks, ", model["model_type"].get<std::string>()));
    }
  }
}

TEST(Recompute, plans_are_bitwise_equal_in_16_bits_whichever_dtype_multiplies) {
  testing::TemporaryFolder folder, gemma3, mixture, e2b, bert;
  testing::write_tiny_model(folder.path(), five_layers());
  testing::write_tiny_model(gemma3.path(), five_gemma3_layers());
  testing::write_tiny_model(mixture.path(), five_mixture_layers());
  testing::write_tiny_model(e2b.path(), five_gemma4_e2b_layers());
  testing::write_tiny_model(bert.path(), five_bert_layers());
  using Dtypes = std::pair<at::ScalarType, at::ScalarType>;
  for (const auto& [storage, compute] : {Dtypes{at::kBFloat16, at::kBFloat16},
                                         Dtypes{at::kBFloat16, at::kFloat}, Dtypes{at::kHalf, at::kFloat}})
    for (const auto& [model, ranks] : {std::pair{folder.path(), 1},
                                       {folder.path(), 2},
                                       {gemma3.path(), 1},
                                       {mixture.path(), 1},
                                       {e2b.path(), 1},
                                       {bert.path(), 1},
                                       {bert.path(), 2}}) {
      const WatchedRun run{.ranks = ranks, .storage = storage, .compute = compute};
      const auto none = testing::run_pass(model, run, plan_of(Recompute::none));
      for (const RecomputePlan& plan :
           {plan_of(Recompute::full), plan_of(Recompute::full, 3), plan_of(Recompute::full, kLayers),
            plan_of(Recompute::keep_attention), plan_of(Recompute::keep_attention, 2, 0.5),
            plan_of(Recompute::none, 1, 0.5), plans_of_parts()[0], plans_of_parts()[2], plans_of_parts()[4]})
        expect_same_bits(
            testing::run_pass(model, run, plan), none,
            cat(name_of(plan), ", ", ranks, " ranks, values in ", storage, ", matmuls in ", compute));
    }
}

TEST(Recompute, exchanges_and_attention_passes_are_those_of_the_table) {
  testing::TemporaryFolder folder;
  testing::write_tiny_model(folder.path(), five_layers());
  for (const RecomputePlan& plan : all_plans()) {
    int64_t exchanges = 0, forwards = 0;
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      const Kept kept = kept_of(plan, layer);
      // d(o) and o by heads together; then dq, dk and dv.
      exchanges += 2 + 2 + (kept.attention ? 0 : 1) + (kept.qkv ? 0 : 1);
      // Of a layer that runs again q, k and v are sent for attention, and once more for its backward.
      if (!kept.attention && !last_of_group(plan, layer)) ++exchanges;
      forwards += kept.attention ? 1 : 2;
    }
    for (const PassRecord& record : testing::run_pass(folder.path(), {.ranks = 2}, plan)) {
      EXPECT_EQ(record.exchanges, exchanges) << name_of(plan);
      EXPECT_EQ(record.attention_forwards, forwards) << name_of(plan);
    }
  }
}

TEST(Recompute, a_matmul_runs_forward_for_the_loss_for_the_next_layers_input_and_for_backward) {
  const testing::WithoutOneDnn products_that_are_seen;
  testing::TemporaryFolder folder;
  testing::write_tiny_model(folder.path(), five_layers());
  const ModelLayout layout = make_model_layout(read_model_config(folder.path()));
  for (const RecomputePlan& plan : all_plans()) {
    const PassRecord record = testing::run_pass(folder.path(), {}, plan)[0];
    EXPECT_EQ(record.forward_products.size(), 4 * kLayers + 1);
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      const int unit = layout.layer_unit(layer);
      const Kept kept = kept_of(plan, layer);
      const int ahead = last_of_group(plan, layer) ? 0 : 1;
      // What is kept is not made again; the down projection is of no use to backward.
      for (const auto& [name, products] :
           {std::pair("q_proj.weight", (kept.qkv ? 1 : 2) + (kept.attention ? 0 : ahead)),
            {"o_proj.weight", (kept.mlp ? 1 : 2) + ahead},
            {"gate_proj.weight", (kept.mlp ? 1 : 2) + ahead},
            {"down_proj.weight", 1 + ahead}}) {
        const int64_t byte = testing::parameter_of(layout.units[static_cast<size_t>(unit)], name).offset * 4;
        EXPECT_EQ(record.forward_products.at({unit, byte}), products)
            << name_of(plan) << ": " << name << " of layer " << layer;
      }
    }
  }
}

TEST(Recompute, kept_bytes_are_those_of_the_slots) {
  testing::TemporaryFolder folder;
  testing::write_tiny_model(folder.path(), five_layers());
  constexpr int64_t M = 32, H = 4, K = 2, D = 8, I = 48, B = 2, S = 41;
  for (const int64_t P : {1, 2})
    for (const RecomputePlan& plan : all_plans()) {
      const WatchedRun run{.ranks = static_cast<int>(P), .batch = B, .tokens = S};
      const auto records = testing::run_pass(folder.path(), run, plan);
      for (int64_t rank = 0; rank < P; ++rank) {
        const int64_t own = B * (S / P + (rank < S % P ? 1 : 0)), whole = B * S;
        const int64_t attention = own * H * D + whole * H / P;
        const int64_t qkv = whole * (H + 2 * K) / P * D, o_by_heads = P > 1 ? whole * H / P * D : 0;
        const int64_t mlp = own * (M + 2 * I);
        int64_t elements = 0;
        for (int64_t layer = 0; layer < kLayers; ++layer) {
          const Kept kept = kept_of(plan, layer);
          elements += (kept.input ? own * M : 0) + (kept.attention ? attention : 0) + (kept.qkv ? qkv : 0) +
                      (kept.attention && kept.qkv ? o_by_heads : 0) + (kept.mlp ? mlp : 0);
        }
        EXPECT_EQ(records[static_cast<size_t>(rank)].kept_bytes, 4 * elements)
            << name_of(plan) << ", rank " << rank << " of " << P;
      }
    }
}

TEST(Recompute, less_is_kept_from_none_to_full_and_with_larger_groups) {
  testing::TemporaryFolder folder;
  testing::write_tiny_model(folder.path(), five_layers());
  const auto bytes = [&](const RecomputePlan& plan) {
    return testing::run_pass(folder.path(), {}, plan)[0].kept_bytes;
  };
  for (const std::vector<RecomputePlan>& falling :
       {std::vector{plan_of(Recompute::none), plan_of(Recompute::none, 1, 0.5),
                    plan_of(Recompute::keep_attention), plan_of(Recompute::keep_attention, 1, 0.5),
                    plan_of(Recompute::full)},
        std::vector{plan_of(Recompute::full), plan_of(Recompute::full, 2), plan_of(Recompute::full, kLayers)},
        std::vector{plan_of(Recompute::keep_attention), plan_of(Recompute::keep_attention, 2),
                    plan_of(Recompute::keep_attention, 2, 0.25)}})
    for (size_t at = 1; at < falling.size(); ++at)
      EXPECT_LT(bytes(falling[at]), bytes(falling[at - 1])) << name_of(falling[at]);
}

TEST(Recompute, all_units_but_the_first_are_prefetched_and_all_prefetched_are_used) {
  for (const bool tied : {false, true}) {
    testing::TemporaryFolder folder;
    testing::write_tiny_model(folder.path(), five_layers(tied));
    for (const RecomputePlan& plan : all_plans()) {
      int64_t again = 0;
      for (int64_t layer = 0; layer + 1 < kLayers; ++layer) again += last_of_group(plan, layer) ? 0 : 1;
      const PassRecord record = testing::run_pass(folder.path(), {}, plan)[0];
      EXPECT_EQ(record.gathers, 1 + kLayers + (tied ? 2 : 1) + kLayers + again) << name_of(plan);
      EXPECT_EQ(record.prefetches, record.gathers - 1) << name_of(plan);
    }
  }
}

TEST(Recompute, plans_that_mean_nothing_are_config_errors) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const auto& [policy, every, fraction] :
       std::vector<std::tuple<Recompute, int64_t, double>>{{Recompute::full, -2, 1},
                                                           {Recompute::keep_attention, -1, 1},
                                                           {Recompute::none, 2, 1},
                                                           {Recompute::none, 2, 0.5},
                                                           {Recompute::full, 1, 0.5},
                                                           {Recompute::keep_attention, 1, -0.01},
                                                           {Recompute::keep_attention, 1, 1.01},
                                                           {Recompute::keep_attention, 1, nan}})
    EXPECT_THROW(check_engine_options({.recompute = {policy, every, fraction}}), ConfigError)
        << every << " " << fraction;
  EXPECT_NO_THROW(
      check_engine_options({.recompute = {Recompute::full, std::numeric_limits<int64_t>::max()}}));
}

TEST(Recompute, parts_beside_a_policy_that_knows_none_are_config_errors) {
  for (const auto& part : {&RecomputePlan::keep_qkv_fraction, &RecomputePlan::keep_mlp_fraction}) {
    EngineOptions options;
    options.recompute.*part = 0.5;
    for (const Recompute policy : {Recompute::automatic, Recompute::none, Recompute::full}) {
      options.recompute.policy = policy;
      EXPECT_THROW(check_engine_options(options), ConfigError) << name_of(policy);
    }
    options.recompute.policy = Recompute::keep_attention;
    EXPECT_NO_THROW(check_engine_options(options));
    options.recompute.keep_fraction = 0;
    EXPECT_NO_THROW(check_engine_options(options));
    options.recompute.checkpoint_every = 2;
    EXPECT_THROW(check_engine_options(options), ConfigError);
    options.recompute.checkpoint_every = 1;
    options.offload.activations = Offload::cpu;
    EXPECT_THROW(check_engine_options(options), ConfigError);
    options.offload.activations = Offload::none;
    options.recompute.*part = 1.1;
    EXPECT_THROW(check_engine_options(options), ConfigError);
  }
}

TEST(Recompute, the_engine_follows_its_options) {
  testing::TemporaryFolder folder;
  testing::write_tiny_model(folder.path(), five_layers());
  const auto exchanges = [&](const EngineOptions& options) {
    int64_t calls = 0;
    run_ranks_as_threads(2, [&](World& world) {
      const auto engine = assemble(world, folder.path(), options);
      engine->mesh().ulysses->reset_traffic();
      engine->accumulate_gradients({testing::slice_of_batch(1, 12, 70, 1, 2, world.rank())});
      if (world.rank() == 0) calls = engine->mesh().ulysses->traffic().at("all_to_all").calls;
    });
    return calls;
  };
  EngineOptions options;
  options.ulysses = 2;
  options.recompute.policy = Recompute::none;
  EXPECT_EQ(exchanges(options), kLayers * 4);
  options.recompute.keep_fraction = 0.5;
  EXPECT_EQ(exchanges(options), 3 * 4 + 2 * 6);
  options.recompute.checkpoint_every = 2;
  EXPECT_THROW(exchanges(options), ConfigError);
  options.recompute.policy = Recompute::keep_attention;
  EXPECT_EQ(exchanges(options), 3 * 5 + 7 + 6);  // the first layer runs again, with its attention
  options.recompute.keep_qkv_fraction = 1;
  EXPECT_THROW(exchanges(options), ConfigError);
  options.recompute.checkpoint_every = 1;
  EXPECT_EQ(exchanges(options), 3 * 4 + 2 * 5);
}

}  // namespace
}  // namespace trireme::recompute_test
