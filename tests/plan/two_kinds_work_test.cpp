// The counts of a step's work where layers with full attention have heads of their own (Gemma 4), against sums
// made by hand.
#include <tuple>

#include <gtest/gtest.h>

#include "trireme/forecast/recompute_cost.h"
#include "trireme/plan/planned_inputs.h"
#include "trireme/plan/step_work.h"

#include "tests/plan/small_request.h"
#include "tests/plan/work_amounts.h"

namespace trireme::two_kinds_work_test {
namespace {

using namespace testing;

constexpr double kTokens = 2048, kCommonPairs = 3 * (512 * 2048.0 - 512 * 512 / 2),
                 kFullPairs = 2048.0 * 1024;

// The small model; the last of its four layers has full attention, of 8 heads and 2 key/value heads, 64 wide.
PlannedStep two_kinds_step(Recompute recompute, int ulysses = 1) {
  PlannedStep step = small_step(static_cast<int64_t>(kTokens), recompute, ulysses);
  ModelSizes& model = step.inputs.model;
  model.layer_windows = {512, 512, 512, 0};
  model.full_heads = AttentionHeads{8, 2, 64, /*keys_are_values=*/true};
  step.attention_pairs = {kCommonPairs, kFullPairs};
  return step;
}

double amount_at_width(const PlannedStep& step, WorkKind kind, double width) {
  double sum = 0;
  for (const WorkItem& item : step_work(step).items)
    sum += item.kind == kind && item.width == width ? item.amount : 0;
  return sum;
}

constexpr double kMlp = 3 * 256.0 * 768, kCommonQkv = 256.0 * 512, kFullQkv = 256.0 * 640;
constexpr double kParameters =
    3 * (kCommonQkv + 256.0 * 256 + kMlp) + (kFullQkv + 512.0 * 256 + kMlp) + 256.0 * 1024;

TEST(TwoKinds, multiply_by_the_matrices_of_their_heads) {
  const PlannedStep step = two_kinds_step(Recompute::none);
  EXPECT_EQ(matmul_parameters(step.inputs.model), kParameters);
  EXPECT_DOUBLE_EQ(products_of(step), 6 * kParameters * kTokens);
  EXPECT_DOUBLE_EQ(step.model_flops(),
                   6 * kParameters * kTokens + 12 * (8 * 32 * kCommonPairs + 8 * 64 * kFullPairs));
}

TEST(TwoKinds, attend_with_the_width_and_the_pairs_of_each) {
  const PlannedStep step = two_kinds_step(Recompute::keep_attention);
  for (const auto& [kind, flops] :
       {std::pair{WorkKind::attention_forward, 4}, {WorkKind::attention_backward, 10}}) {
    EXPECT_DOUBLE_EQ(amount_at_width(step, kind, 32), flops * 32 * 8 * kCommonPairs);
    EXPECT_DOUBLE_EQ(amount_at_width(step, kind, 64), flops * 64 * 8 * kFullPairs);
  }
  // q and k, forward, again in backward and back.
  EXPECT_DOUBLE_EQ(amount_of(step, WorkKind::rotation), 3 * kTokens * (3 * 12 * 32 + 10 * 64));
}

// Four layers of full attention alone.
TEST(TwoKinds, of_full_attention_alone_have_all_pairs_in_it) {
  PlannedStep step = two_kinds_step(Recompute::keep_attention);
  step.inputs.model.layer_windows.assign(4, 0);
  step.attention_pairs = {0, 4 * kFullPairs};
  EXPECT_DOUBLE_EQ(amount_of(step, WorkKind::attention_forward), 4 * 64 * 8 * 4 * kFullPairs);
}

TEST(TwoKinds, norm_values_and_make_the_whole_projection_again_for_it) {
  PlannedStep step = two_kinds_step(Recompute::none);
  const double norms = amount_of(step, WorkKind::norm), backward = amount_of(step, WorkKind::norm_backward),
               products = products_of(step);
  step.inputs.model.qk_norm = true;
  const double of_keys = 3 * 12 * 32 + 10 * 64, of_values = 3 * 4 * 32 + 2 * 64;
  EXPECT_DOUBLE_EQ(amount_of(step, WorkKind::norm), norms + kTokens * of_keys);
  EXPECT_DOUBLE_EQ(products_of(step), products + 2 * kTokens * (3 * 256.0 * 384 + kFullQkv));
  step.inputs.model.v_norm = true;
  EXPECT_DOUBLE_EQ(amount_of(step, WorkKind::norm), norms + kTokens * (of_keys + of_values));
  EXPECT_DOUBLE_EQ(amount_of(step, WorkKind::norm_backward), backward + kTokens * (of_keys + of_values));
  EXPECT_DOUBLE_EQ(products_of(step), products + 2 * kTokens * (3 * kCommonQkv + kFullQkv));
}

TEST(StepWork, of_capped_logits_passes_over_them_three_times_more) {
  PlannedStep step = small_step(2048, Recompute::none);
  const double copies = amount_of(step, WorkKind::copy);
  step.inputs.model.caps_logits = true;
  EXPECT_DOUBLE_EQ(amount_of(step, WorkKind::copy), copies + 3 * 2048 * 1024);
}

TEST(TwoKinds, exchange_heads_of_each) {
  const double value = kTokens / 2 * 4 * 0.5;  // of a layer's shard, in fp32, sent to the other rank
  // q, k and v, o; do, and dq, dk and dv
  EXPECT_DOUBLE_EQ(sent_bytes(two_kinds_step(Recompute::none, 2), TrafficKind::ulysses),
                   value * 2 * (3 * (16 * 32 + 8 * 32) + (12 * 64 + 8 * 64)));
}

TEST(TwoKinds, gather_parameters_of_each) {
  PlannedStep step = two_kinds_step(Recompute::none, 2);
  step.inputs.zero = 3;
  step.inputs.model.unit_elements = {5000, 100, 100, 100, 3000, 7000};
  EXPECT_DOUBLE_EQ(sent_bytes(step, TrafficKind::gathered_parameters),
                   (2 * (3 * 100 + 3000) + 7000 + 5000) * 4 * 0.5);
}

TEST(TwoKinds, run_a_second_time_as_the_cost_of_recomputing_says) {
  PlannedStep step = two_kinds_step(Recompute::keep_attention);
  const double products = products_of(step),
               cost = product_flops_made_again(step.inputs.recompute, step.inputs);
  step.inputs.recompute.checkpoint_every = 2;
  const double more = product_flops_made_again(step.inputs.recompute, step.inputs) - cost;
  // The first of each two runs again, where the cost has the mean of all layers: out is 256 x 320 wide in it.
  EXPECT_DOUBLE_EQ(products_of(step) - products, 2 * kTokens * 2 * (256.0 * 256 + kMlp));
  EXPECT_DOUBLE_EQ(more, 2 * 2 * (256.0 * 320 + kMlp));
}

TEST(PlanRequest, has_the_pairs_of_each_kind_of_a_samples_documents) {
  PlanRequest request = small_request(1, 4096, 1 << 30);
  request.attention_pairs = [](int64_t n) {
    return AttentionPairs{static_cast<double>(n), static_cast<double>(n * n)};
  };
  request.document_tokens = 1000;
  EXPECT_EQ(request.pairs_of_sample(2500), (AttentionPairs{2500, 2 * 1e6 + 500 * 500}));
  EXPECT_EQ(request.pairs_of_sample(900), (AttentionPairs{900, 900 * 900}));
}

// Six query heads over four ranks: 2, 2, 1, 1. The second rank's two are of both where there are two key/value
// heads.
TEST(FullestSequenceRank, is_told_by_the_key_value_heads_of_either_kind) {
  ModelSizes model = small_model();
  Configuration configuration;
  configuration.ulysses = 4;
  model.heads = 6;
  for (const auto& [common, full, fullest] : {std::tuple{2, 6, 1}, {6, 2, 1}, {6, 6, 0}}) {
    model.kv_heads = common;
    model.full_heads = AttentionHeads{6, full, 64};
    EXPECT_EQ(fullest_sequence_rank(model, configuration), fullest);
  }
}

}  // namespace
}  // namespace trireme::two_kinds_work_test
