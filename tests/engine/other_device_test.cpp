// Device placement: the engine on a device that is not the host, with every pair of policies, gives the CPU's
// numbers. On the guarded device (tests/support/guarded_device.h) what looks for a tensor on the wrong device
// is ended or refused; on a GPU the same laws are held by its own kernels.
#include <gtest/gtest.h>

#include "tests/engine/attention_under_test.h"
#include "tests/engine/policy_cases.h"
#include "tests/engine/tiny_model.h"
#include "tests/support/device_under_test.h"
#include "tests/support/relative_error.h"
#include "tests/support/temporary_folder.h"

namespace trireme::other_device_test {
namespace {

using testing::PolicyCase, testing::PolicyOutcome, testing::run_policy;
using testing::TemporaryFolder;

class OnAnotherDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::device_under_test()) GTEST_SKIP() << "no GPU here";
    testing::write_policy_model(model_.path());
  }

  TemporaryFolder model_, disk_;
};

PolicyCase on_device_under_test(PolicyCase policy) {
  policy.options.device = *testing::device_under_test();
  policy.options.attention = testing::attention_under_test(policy.options.device, policy.options.precision);
  return policy;
}

TEST_F(OnAnotherDevice, every_pair_of_choices_gives_the_numbers_of_the_plain_run) {
  testing::PlainRuns plain(model_.path());
  for (const PolicyCase& policy : testing::every_pair_of_policies(disk_.path())) {
    SCOPED_TRACE(describe(policy));
    const double tolerance = testing::tolerance_of(policy);
    const PolicyCase there = on_device_under_test(policy);
    const PolicyOutcome got = run_policy(model_.path(), there, find_optimizer("adamw_torch"), 2);
    const PolicyOutcome& expected = plain.of(policy, find_optimizer("adamw_torch"), 2);
    for (const auto& [name, gradient] : got.gradients)
      EXPECT_LT(testing::relative_error(gradient, expected.gradients.at(name)), tolerance) << name;
    for (size_t step = 0; step < expected.losses.size(); ++step)
      EXPECT_NEAR(got.losses[step] / expected.losses[step], 1, tolerance) << "step " << step;
    if (HasFailure()) return;
  }
  EXPECT_TRUE(std::filesystem::is_empty(disk_.path())) << "files were left behind";
}

// Packed documents over two ranks, with tiles that leave experts of a mixture without a row.
class OtherModels : public OnAnotherDevice,
                    public ::testing::WithParamInterface<Json (*)(int64_t, int64_t)> {};

TEST_P(OtherModels, give_the_numbers_of_the_plain_run) {
  // Scores that no root divides (Gemma 4) make 1e-4 of a rounding, where a processor's products round otherwise.
  constexpr double kTolerance = 3e-4;
  TemporaryFolder model;
  Json config = GetParam()(4, 2);
  config["vocab_size"] = 70;
  testing::write_tiny_model(model.path(), config);
  for (const Recompute recompute : {Recompute::none, Recompute::full}) {
    PolicyCase policy;
    policy.ranks = 2;
    policy.packed = true;
    policy.options.ulysses = 2;
    policy.options.zero = ZeroStage::parameters;
    policy.options.recompute.policy = recompute;
    policy.options.tile_tokens = 3;
    const OptimizerKind& optimizer = find_optimizer("sgd");
    const PolicyOutcome expected = run_policy(model.path(), policy, optimizer, 2);
    const PolicyOutcome got = run_policy(model.path(), on_device_under_test(policy), optimizer, 2);
    for (const auto& [name, gradient] : got.gradients) {
      const at::Tensor& truth = expected.gradients.at(name);
      if (truth.abs().max().item<double>() == 0)  // of what is not trained
        EXPECT_TRUE(gradient.equal(truth)) << name;
      else
        EXPECT_LT(testing::relative_error(gradient, truth), kTolerance) << name;
    }
    EXPECT_NEAR(got.losses.back() / expected.losses.back(), 1, 1e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, OtherModels,
                         ::testing::Values(&testing::tiny_mixture_config, &testing::tiny_qwen3_5_config,
                                           &testing::tiny_qwen3_next_config,
                                           &testing::tiny_gemma4_experts_config,
                                           &testing::tiny_gemma4_e2b_config));

TEST_F(OnAnotherDevice, offload_is_bitwise_equal_to_none) {
  PolicyCase resident;
  resident.ranks = 2;
  resident.options.ulysses = 2;
  resident.options.zero = ZeroStage::parameters;
  resident.options.precision = Precision::bf16;
  resident.options.offload.optimizer = Offload::cpu;  // a GPU's AdamW rounds otherwise than the host's
  resident = on_device_under_test(resident);
  const PolicyOutcome expected = run_policy(model_.path(), resident, find_optimizer("adamw_torch"), 3);
  for (const Offload offload : {Offload::cpu, Offload::disk}) {
    PolicyCase offloaded = resident;
    offloaded.options.offload = {offload, offload, offload,
                                 offload == Offload::disk ? disk_.path() : std::filesystem::path(), 0};
    const PolicyOutcome got = run_policy(model_.path(), offloaded, find_optimizer("adamw_torch"), 3);
    EXPECT_EQ(got.losses, expected.losses) << name_of(offload);
    for (const auto& [name, weights] : expected.weights)
      EXPECT_TRUE(at::equal(weights, got.weights.at(name))) << name << ", " << name_of(offload);
  }
}

}  // namespace
}  // namespace trireme::other_device_test
