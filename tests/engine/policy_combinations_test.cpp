// Neither memory policies nor ways to share a sequence change results: a table of configurations in which
// every pair of choices occurs, each against the plain run on one rank: losses, first-step gradients and
// weights after SGD steps.
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/comm/thread_world.h"
#include "trireme/engine/assemble.h"
#include "trireme/engine/check_options.h"

#include "tests/engine/policy_cases.h"
#include "tests/engine/tiny_model.h"
#include "tests/support/relative_error.h"
#include "tests/support/temporary_folder.h"

namespace trireme::policy_combinations_test {
namespace {

using testing::run_policy;
using testing::TemporaryFolder;
using Case = testing::PolicyCase;
using Outcome = testing::PolicyOutcome;

class PolicyCombinations : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::write_policy_model(model_.path());
    testing::write_tiny_model(told_.path(), testing::tiny_gemma4_e2b_config());
  }
  TemporaryFolder model_, told_, disk_;  // of `told_` layers are told of their tokens, by a unit of its own
  testing::PlainRuns plain_{model_.path()};
};

TEST_F(PolicyCombinations, every_pair_of_choices_gives_the_numbers_of_the_plain_run) {
  const std::vector<Case> cases = testing::every_pair_of_policies(disk_.path());
  ASSERT_GE(cases.size(), 16U);
  for (const Case& c : cases) {
    SCOPED_TRACE(describe(c));
    const double tolerance = testing::tolerance_of(c);

    const Outcome sgd = run_policy(model_.path(), c, find_optimizer("sgd"), 3);
    const Outcome& plain_sgd = plain_.of(c, find_optimizer("sgd"), 3);
    for (const auto& [name, gradient] : sgd.gradients)
      EXPECT_LT(testing::relative_error(gradient, plain_sgd.gradients.at(name)), tolerance) << name;
    for (const auto& [name, weights] : sgd.weights)
      EXPECT_LT(testing::relative_error(weights, plain_sgd.weights.at(name)), tolerance) << name;

    const Outcome adamw = run_policy(model_.path(), c, find_optimizer("adamw_torch"), 2);
    const Outcome& plain_adamw = plain_.of(c, find_optimizer("adamw_torch"), 2);
    for (size_t step = 0; step < adamw.losses.size(); ++step)
      EXPECT_NEAR(adamw.losses[step] / plain_adamw.losses[step], 1, tolerance) << "step " << step;
    EXPECT_LT(testing::change_error(adamw, plain_adamw), testing::change_tolerance_of(c));
    if (HasFailure()) return;
  }
  EXPECT_TRUE(std::filesystem::is_empty(disk_.path())) << "files were left behind";
}

TEST_F(PolicyCombinations, offload_to_disk_is_bitwise_equal_to_none) {
  Case resident;
  resident.ranks = 2;
  resident.options.ulysses = 2;
  resident.options.zero = ZeroStage::parameters;
  resident.options.precision = Precision::bf16;
  Case disk = resident;
  disk.options.offload = {Offload::disk, Offload::disk, Offload::disk, disk_.path(), 0};
  for (const auto& model : {model_.path(), told_.path()}) {
    const Outcome a = run_policy(model, resident, find_optimizer("adamw_torch"), 3);
    const Outcome b = run_policy(model, disk, find_optimizer("adamw_torch"), 3);
    EXPECT_EQ(a.losses, b.losses);
    for (const auto& [name, weights] : a.weights) EXPECT_TRUE(at::equal(weights, b.weights.at(name))) << name;
  }
}

TEST_F(PolicyCombinations, stages_are_bitwise_equal_without_accumulation) {
  Case none;
  none.ranks = 3;
  none.options.ulysses = 3;
  for (const auto& model : {model_.path(), told_.path()}) {
    const Outcome expected = run_policy(model, none, find_optimizer("sgd"), 3);
    for (const ZeroStage stage : {ZeroStage::optimizer, ZeroStage::gradients, ZeroStage::parameters}) {
      Case c = none;
      c.options.zero = stage;
      const Outcome got = run_policy(model, c, find_optimizer("sgd"), 3);
      EXPECT_EQ(got.losses, expected.losses) << int(stage);
      for (const auto& [name, gradient] : expected.gradients)
        EXPECT_TRUE(at::equal(gradient, got.gradients.at(name))) << name << ", stage " << int(stage);
    }
  }
}

TEST_F(PolicyCombinations, a_disk_that_is_too_small_is_told_before_the_first_step) {
  run_ranks_as_threads(1, [&](World& world) {
    EngineOptions options;
    options.offload.optimizer = Offload::disk;
    options.offload.folder = disk_.path();
    options.offload.limit_bytes = 10000;
    EXPECT_THROW(assemble(world, model_.path(), options), ConfigError);
  });
}

TEST(EngineOptions, combinations_that_mean_nothing_are_refused) {
  const auto refused = [](const std::function<void(EngineOptions&)>& change) {
    EngineOptions options;
    change(options);
    try {
      check_engine_options(options);
    } catch (const ConfigError&) {
      return true;
    }
    return false;
  };
  EXPECT_FALSE(refused([](EngineOptions&) {}));
  EXPECT_TRUE(refused([](EngineOptions& o) {
    o.recompute.policy = Recompute::none;
    o.offload.activations = Offload::cpu;
  }));
  EXPECT_TRUE(refused([](EngineOptions& o) { o.offload.activations = Offload::disk; })) << "without a folder";
  EXPECT_TRUE(refused([](EngineOptions& o) { o.offload.folder = "somewhere"; })) << "with nothing on disk";
  EXPECT_TRUE(refused([](EngineOptions& o) { o.offload.parameters = Offload::cpu; })) << "without ZeRO 3";
  EXPECT_TRUE(refused([](EngineOptions& o) {
    o.update_in_backward = true;
    o.optimizer.max_grad_norm = 1;
  }));
  EXPECT_TRUE(refused([](EngineOptions& o) {
    o.update_in_backward = true;
    o.precision = Precision::fp16;
  }));
  EXPECT_TRUE(refused([](EngineOptions& o) {
    o.optimizer.kind = &find_optimizer("sgd");
    o.offload.optimizer = Offload::cpu;
  }));
  EXPECT_TRUE(refused([](EngineOptions& o) {
    o.optimizer.kind = &find_optimizer("sgd");
    o.optimizer.state_dtype = at::kBFloat16;
  }));
  EXPECT_TRUE(refused([](EngineOptions& o) {
    o.purpose = Purpose::evaluation;
    o.zero = ZeroStage::gradients;
  }));
}

}  // namespace
}  // namespace trireme::policy_combinations_test
