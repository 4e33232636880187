// An encoder in the forward and backward pass: no matmul runs forward more than twice, any number of ranks
// gives the gradients of one, and what the slots hold is what recompute_plan.h says. (That every plan gives the
// same bits is recompute_test.cpp's.)
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/comm/thread_world.h"
#include "trireme/engine/assemble.h"
#include "trireme/model/unit_weights.h"

#include "tests/engine/tiny_model.h"
#include "tests/engine/watched_pass.h"
#include "tests/support/error_message.h"
#include "tests/support/without_onednn.h"

namespace trireme {
namespace {

using testing::PassRecord;
using testing::WatchedRun;

constexpr int64_t kLayers = 3;

class EncoderPass : public ::testing::Test {
 protected:
  EncoderPass() {
    Json config = testing::tiny_bert_config();
    config["num_hidden_layers"] = kLayers;
    testing::write_tiny_model(folder_.path(), config);
    layout_ = make_model_layout(read_model_config(folder_.path()));
  }
  std::vector<PassRecord> pass(const WatchedRun& run, const RecomputePlan& plan) const {
    return testing::run_pass(folder_.path(), run, plan);
  }
  static RecomputePlan plan_of(Recompute policy, int64_t every = 1, double fraction = 1) {
    return RecomputePlan{policy, every, fraction, kLayers};
  }
  static std::vector<RecomputePlan> plans() {
    return {plan_of(Recompute::none),
            plan_of(Recompute::none, 1, 0.5),
            plan_of(Recompute::keep_attention),
            plan_of(Recompute::keep_attention, 2),
            plan_of(Recompute::full),
            plan_of(Recompute::full, 2),
            plan_of(Recompute::full, kLayers),
            {Recompute::keep_attention, 1, 1, kLayers, 1, 0.5},
            {Recompute::keep_attention, 1, 0, kLayers, 0.5, 1}};
  }
  static std::string name_of(const RecomputePlan& plan) {
    return cat("policy ", static_cast<int>(plan.policy), ", every ", plan.checkpoint_every, ", fraction ",
               plan.keep_fraction);
  }

  testing::TemporaryFolder folder_;
  ModelLayout layout_;
};

TEST_F(EncoderPass, a_matmul_runs_forward_for_the_loss_for_the_next_layers_input_and_for_backward) {
  const testing::WithoutOneDnn products_that_are_seen;
  for (const RecomputePlan& plan : plans()) {
    const PassRecord record = pass({}, plan)[0];
    // q|k|v, out, up and down of each layer; the head's dense and the embedding's matrix.
    EXPECT_EQ(record.forward_products.size(), 4 * kLayers + 2);
    const bool nothing_again = plan.policy == Recompute::none && plan.keep_fraction == 1;
    for (const auto& [matrix, products] : record.forward_products)
      EXPECT_LE(products, nothing_again                ? 1
                          : plan.checkpoint_every == 1 ? 2
                                                       : 3)
          << name_of(plan) << ": unit " << matrix.first << " byte " << matrix.second;
  }
}

TEST_F(EncoderPass, any_number_of_ranks_gives_loss_and_gradients_of_one) {
  const RecomputePlan plan = plan_of(Recompute::keep_attention);
  const PassRecord one = pass({}, plan)[0];
  for (const int ranks : {2, 3, 4}) {
    const auto records = pass({.ranks = ranks}, plan);
    double loss = 0;
    for (const PassRecord& record : records) loss += record.loss_sum;
    EXPECT_NEAR(loss, one.loss_sum, 1e-5 * one.loss_sum);
    for (size_t unit = 0; unit < layout_.units.size(); ++unit) {
      at::Tensor sum = at::zeros_like(one.gradients[unit]);
      for (const PassRecord& record : records) sum += record.gradients[unit];
      const double unit_largest = one.gradients[unit].abs().max().item<double>();
      for (const ParameterSpec& spec : layout_.units[unit].parameters) {
        const at::Tensor expected = parameter_view(one.gradients[unit], spec);
        const double largest = spec.gradient_vanishes ? unit_largest : expected.abs().max().item<double>();
        EXPECT_GT(largest, 1e-4) << spec.name;
        EXPECT_LT((parameter_view(sum, spec) - expected).abs().max().item<double>(), 1e-4 * largest)
            << spec.name << " on " << ranks << " ranks";
        if (spec.gradient_vanishes) {
          EXPECT_LT(expected.abs().max().item<double>(), 1e-5 * unit_largest) << spec.name;
        }
      }
    }
  }
}

TEST_F(EncoderPass, the_embedding_is_gathered_once_more_for_its_backward) {
  for (const RecomputePlan& plan : plans()) {
    int64_t again = 0;
    for (int64_t layer = 0; layer + 1 < kLayers; ++layer)
      again += (layer + 1) % plan.checkpoint_every == 0 ? 0 : 1;
    const PassRecord record = pass({}, plan)[0];
    // Embedding, layers, head and its matrix; layers again; embedding.
    EXPECT_EQ(record.gathers, 1 + kLayers + 2 + kLayers + again + 1) << name_of(plan);
    EXPECT_EQ(record.prefetches, record.gathers - 1) << name_of(plan);
  }
}

TEST_F(EncoderPass, kept_bytes_are_those_of_the_slots) {
  constexpr int64_t M = 32, H = 4, I = 48, B = 2, S = 41, rows = B * S;
  const auto kept = [&](Recompute policy) {
    return pass({.batch = B, .tokens = S}, plan_of(policy))[0].kept_bytes;
  };
  EXPECT_EQ(kept(Recompute::full), 4 * kLayers * rows * M);
  EXPECT_EQ(kept(Recompute::keep_attention), 4 * kLayers * rows * (2 * M + H));
  // x, q, k, v, o, log-sum-exp, x1; up and x2.
  EXPECT_EQ(kept(Recompute::none), 4 * kLayers * rows * (6 * M + H + I + M));
}

TEST_F(EncoderPass, a_document_longer_than_the_table_of_positions_is_refused) {
  run_ranks_as_threads(1, [&](World& world) {
    const auto engine = assemble(world, folder_.path(), {});
    const auto step = [&](int64_t tokens) {
      return testing::message_of<ConfigError>(
          [&] { engine->accumulate_gradients({testing::slice_of_batch(1, tokens, 70, 1, 1, 0)}); });
    };
    EXPECT_EQ(step(64), "no error");
    EXPECT_THAT(step(65), ::testing::HasSubstr("max_position_embeddings 64"));
  });
}

}  // namespace
}  // namespace trireme
