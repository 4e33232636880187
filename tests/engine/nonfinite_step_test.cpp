// A step whose loss is not finite, skipped: it leaves nothing behind. The oracle is a run that never took it.
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/comm/thread_world.h"
#include "trireme/engine/assemble.h"

#include "tests/engine/bad_token_model.h"
#include "tests/engine/tiny_model.h"
#include "tests/support/error_message.h"

namespace trireme::nonfinite_step_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::kBadToken;
using testing::message_of;
using testing::TemporaryFolder;

constexpr double kRate = 1e-12;

class NonfiniteStep : public ::testing::Test {
 protected:
  NonfiniteStep() { testing::write_bad_token_model(folder_.path()); }

  static StepBatches good(uint64_t seed, int rank) {
    return {testing::slice_of_batch(1, 40, kBadToken, seed, 2, rank)};
  }
  // The token lies on the last rank.
  static StepBatches bad(int rank) {
    StepBatches batches = good(9, rank);
    if (rank == 1) batches[0].tokens[0][3] = kBadToken;
    return batches;
  }
  // Every value that a checkpoint would hold, after good steps with or without a bad one between.
  std::vector<at::Tensor> states_after(const EngineOptions& options, bool with_bad_step) const {
    std::vector<at::Tensor> states;
    run_ranks_as_threads(2, [&](World& world) {
      const int rank = world.rank();
      const auto engine = assemble(world, folder_.path(), options);
      EXPECT_TRUE(std::isfinite(engine->train_step(good(1, rank), kRate, OnNonfinite::skip).loss));
      if (with_bad_step) {
        const StepResult result = engine->train_step(bad(rank), kRate, OnNonfinite::skip);
        EXPECT_TRUE(result.skipped);
        EXPECT_FALSE(std::isfinite(result.loss));
        EXPECT_THAT(result.not_finite,
                    AllOf(HasSubstr("All weights are finite"), HasSubstr("the loss of rank ")));
      }
      const StepResult last = engine->train_step(good(2, rank), kRate, OnNonfinite::skip);
      EXPECT_FALSE(last.skipped);
      EXPECT_EQ(last.not_finite, "");
      EXPECT_EQ(engine->progress().optimizer_steps, 2);
      for (size_t unit = 0; unit < engine->layout().units.size(); ++unit)
        for (const std::string& name : engine->state_names()) {
          const at::Tensor state = engine->unit_state(static_cast<int>(unit), name).clone();
          if (rank == 0) states.push_back(state);
        }
    });
    return states;
  }

  TemporaryFolder folder_;
};

TEST_F(NonfiniteStep, skipped_is_bitwise_a_step_that_never_was) {
  EngineOptions replicated;
  replicated.ulysses = 2;
  EngineOptions sharded = replicated;
  sharded.zero = ZeroStage::parameters;
  sharded.offload = {Offload::disk, Offload::disk, Offload::none, folder_.path(), 0};
  for (const EngineOptions& options : {replicated, sharded}) {
    const std::vector<at::Tensor> without = states_after(options, false), with = states_after(options, true);
    ASSERT_EQ(with.size(), without.size());
    for (size_t i = 0; i < with.size(); ++i) EXPECT_TRUE(at::equal(with[i], without[i])) << i;
  }
}

TEST_F(NonfiniteStep, is_an_error_unless_it_may_be_skipped) {
  run_ranks_as_threads(2, [&](World& world) {
    EngineOptions options;
    options.ulysses = 2;
    const auto engine = assemble(world, folder_.path(), options);
    EXPECT_THAT(message_of<DataError>([&] { engine->train_step(bad(world.rank()), kRate); }),
                AllOf(HasSubstr("the parameters were not changed"), HasSubstr("All weights are finite")));
  });
}

TEST_F(NonfiniteStep, cannot_be_skipped_where_a_weight_is_at_fault_or_layers_were_stepped_already) {
  for (const bool in_backward : {false, true}) {
    run_ranks_as_threads(2, [&](World& world) {
      EngineOptions options;
      options.ulysses = 2;
      options.update_in_backward = in_backward;
      const auto engine = assemble(world, folder_.path(), options);
      if (!in_backward) {
        at::Tensor broken = engine->unit_values(1).clone();
        broken[5] = std::nanf("");
        testing::restore_unit(*engine, 1, "master", broken);
      }
      EXPECT_THAT(
          message_of<DataError>([&] { engine->train_step(bad(world.rank()), kRate, OnNonfinite::skip); }),
          HasSubstr(in_backward ? "some parameters were changed already"
                                : "first weight that is not finite"));
    });
  }
}

TEST_F(NonfiniteStep, of_a_weight_beyond_the_range_in_which_the_model_computes_names_it) {
  constexpr float kBeyondBf16 = 3.4e38F;
  for (const auto zero : {ZeroStage::none, ZeroStage::parameters}) {
    run_ranks_as_threads(2, [&](World& world) {
      EngineOptions options;
      options.ulysses = 2;
      options.zero = zero;
      options.precision = Precision::bf16;
      options.bf16_matmul = Bf16Matmul::native;
      const auto engine = assemble(world, folder_.path(), options);
      at::Tensor weights = engine->unit_values(1).to(at::kFloat);
      weights[5] = kBeyondBf16;
      testing::restore_unit(*engine, 1, "master", weights);
      EXPECT_THAT(
          message_of<DataError>([&] { engine->train_step(good(1, world.rank()), kRate); }),
          AllOf(HasSubstr("finite in fp32, but not in bf16"), HasSubstr("(unit "), HasSubstr("infinity")));
    });
  }
}

}  // namespace
}  // namespace trireme::nonfinite_step_test
