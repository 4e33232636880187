// Device placement, without a GPU: the engine runs on a device whose memory the host cannot touch and whose operators
// refuse tensors of two devices (tests/support/guarded_device.h), with every pair of policies, and gives the CPU's numbers.
#include "tests/support/guarded_device.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "trireme/memory/copy_stream.h"

#include "tests/engine/policy_cases.h"
#include "tests/support/relative_error.h"
#include "tests/support/temporary_folder.h"

namespace trireme::guarded_device_test {
namespace {

using testing::guarded_device, testing::TemporaryFolder;
using testing::PolicyCase, testing::PolicyOutcome, testing::run_policy;

TEST(GuardedDevice, computes_what_the_cpu_computes) {
  const at::Tensor x = at::randn({5, 7}), y = at::randn({7, 3});
  const at::Tensor on_x = x.to(guarded_device()), on_y = y.to(guarded_device());
  EXPECT_EQ(on_x.device(), guarded_device());
  EXPECT_TRUE(at::equal(at::mm(on_x, on_y).to(at::kCPU), at::mm(x, y)));
  EXPECT_TRUE(
      at::equal(on_x.t().narrow(0, 2, 3).mul(2).sum(1).to(at::kCPU), x.t().narrow(0, 2, 3).mul(2).sum(1)));
  on_x.narrow(1, 1, 2).zero_();
  EXPECT_EQ(on_x.narrow(1, 1, 2).abs().sum().item<float>(), 0);
  EXPECT_TRUE(at::equal(on_x.narrow(1, 3, 4).to(at::kCPU), x.narrow(1, 3, 4)));
  EXPECT_TRUE(at::equal(at::arange(4, at::TensorOptions(guarded_device())).to(at::kCPU), at::arange(4)));
}

TEST(GuardedDevice, refuses_tensors_of_two_devices) {
  const at::Tensor there = at::ones({4}, guarded_device()), here = at::ones({4});
  EXPECT_THROW(at::add(there, here), c10::Error);
  EXPECT_THROW(there.index_select(0, at::zeros({2}, at::kLong)), c10::Error);
  EXPECT_NO_THROW(at::add(there, at::scalar_tensor(2)));
}

TEST(GuardedDeviceDeathTest, ends_a_host_that_touches_its_memory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const at::Tensor there = at::ones({4}, guarded_device());
  const auto killed = [](int status) { return status != 0; };  // by a signal, or by the sanitizer that saw it
  const volatile float* const address = there.const_data_ptr<float>();
  EXPECT_EXIT(std::exit(*address > 0 ? 0 : 0), killed, ".*");
}

TEST(GuardedDevice, memory_given_back_or_never_written_reads_as_nan) {
  EXPECT_TRUE(at::isnan(at::empty({100}, guarded_device())).all().item<bool>());
}

TEST(GuardedDevice, a_copy_that_nobody_waits_for_comes_too_late) {
  const auto stream = make_copy_stream(guarded_device());
  const at::Tensor from = at::ones({4});
  at::Tensor waited = at::zeros({4}, guarded_device()), hurried = waited.clone();
  stream->wait_for_compute();
  stream->copy(waited, from);
  stream->compute_waits(stream->mark());
  stream->copy(hurried, from);
  EXPECT_EQ(waited.sum().item<float>(), 4);
  EXPECT_EQ(hurried.sum().item<float>(), 0);
  stream->mark()->wait();
  EXPECT_EQ(hurried.sum().item<float>(), 4);
}

class OnGuardedDevice : public ::testing::Test {
 protected:
  void SetUp() override { testing::write_policy_model(model_.path()); }

  TemporaryFolder model_, disk_;
};

PolicyCase on_guarded_device(PolicyCase policy) {
  policy.options.device = guarded_device();
  policy.options.attention = AttentionKernel::reference;
  return policy;
}

TEST_F(OnGuardedDevice, every_pair_of_choices_gives_the_numbers_of_the_plain_run) {
  for (const PolicyCase& policy : testing::every_pair_of_policies(disk_.path())) {
    SCOPED_TRACE(describe(policy));
    const double tolerance = testing::tolerance_of(policy);
    const PolicyCase there = on_guarded_device(policy);
    const PolicyOutcome got = run_policy(model_.path(), there, OptimizerKind::adamw, 2);
    const PolicyOutcome expected =
        run_policy(model_.path(), testing::plain_run_of(policy), OptimizerKind::adamw, 2);
    for (const auto& [name, gradient] : got.gradients)
      EXPECT_LT(testing::relative_error(gradient, expected.gradients.at(name)), tolerance) << name;
    for (size_t step = 0; step < expected.losses.size(); ++step)
      EXPECT_NEAR(got.losses[step] / expected.losses[step], 1, tolerance) << "step " << step;
    if (HasFailure()) return;
  }
  EXPECT_TRUE(std::filesystem::is_empty(disk_.path())) << "files were left behind";
}

TEST_F(OnGuardedDevice, offload_is_bitwise_equal_to_none) {
  PolicyCase resident;
  resident.ranks = 2;
  resident.options.ulysses = 2;
  resident.options.zero = ZeroStage::parameters;
  resident.options.precision = Precision::bf16;
  resident = on_guarded_device(resident);
  const PolicyOutcome expected = run_policy(model_.path(), resident, OptimizerKind::adamw, 3);
  for (const Offload place : {Offload::cpu, Offload::disk}) {
    PolicyCase offloaded = resident;
    offloaded.options.offload = {place, place, place,
                                 place == Offload::disk ? disk_.path() : std::filesystem::path(), 0};
    const PolicyOutcome got = run_policy(model_.path(), offloaded, OptimizerKind::adamw, 3);
    EXPECT_EQ(got.losses, expected.losses) << name_of(place);
    for (const auto& [name, weights] : expected.weights)
      EXPECT_TRUE(at::equal(weights, got.weights.at(name))) << name << ", " << name_of(place);
  }
}

}  // namespace
}  // namespace trireme::guarded_device_test
