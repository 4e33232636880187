// The kernels of activations and cross entropy on a GPU against the ATen versions in fp64 on the CPU, for odd
// widths and rows that lie apart; the same bits again when run again. Skipped where there is no GPU.
// (What they compute is also played on the host: played_activation_test.cpp, played_cross_entropy_test.cpp.)
#include <gtest/gtest.h>

#include "trireme/kernels/token_ops_gpu.h"

#include "tests/support/device_under_test.h"

namespace trireme::cuda_activation_test {
namespace {

class CudaActivations : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    if (!testing::device_under_test()) GTEST_SKIP() << "no GPU here";
    at::manual_seed(8);
  }
  // Rows that lie `gap` elements apart.
  static at::Tensor random(int64_t rows, int64_t width, int64_t gap = 0, double spread = 1) {
    return (at::randn({rows, width + gap}) * spread)
        .to(GetParam())
        .to(*testing::device_under_test())
        .narrow(1, 0, width);
  }
  static at::Tensor fp64(const at::Tensor& x) { return x.to(at::kCPU).to(at::kDouble); }
  static double worst(const at::Tensor& got, const at::Tensor& expected) {
    return (fp64(got) - expected).abs().max().item<double>() /
           std::max(1e-12, expected.abs().max().item<double>());
  }
  static double tolerance() {
    return GetParam() == at::kBFloat16 ? 8e-3 : GetParam() == at::kHalf ? 1e-3 : 4e-6;
  }
  // A copy that lies as `rows` do.
  static at::Tensor again(const at::Tensor& rows) {
    return at::empty_strided(rows.sizes(), rows.strides(), rows.options()).copy_(rows);
  }
};

TEST_P(CudaActivations, gated_units_equal_fp64_both_ways_and_repeat_their_bits) {
  for (const GluGate gate : {GluGate::silu, GluGate::gelu_tanh})
    for (const auto& [T, I, gap] :
         {std::tuple{1, 1, 0}, {7, 33, 0}, {300, 11008, 0}, {129, 1000, 8}, {40, 257, 3}, {513, 2048, 0}}) {
      SCOPED_TRACE(::testing::Message() << T << " x " << I << " + " << gap);
      const at::Tensor gate_up = random(T, 2 * I, gap, 3), dact = random(T, I, gap);
      at::Tensor expected = fp64(gate_up);
      const auto act = gpu::glu(gate, gate_up);
      ASSERT_TRUE(act);
      EXPECT_LT(worst(*act, aten::glu(gate, expected)), tolerance());
      const at::Tensor act_expected = aten::glu_backward(gate, fp64(dact), expected);
      const at::Tensor one = again(gate_up), two = again(gate_up);
      const auto act_one = gpu::glu_backward(gate, dact, one), act_two = gpu::glu_backward(gate, dact, two);
      ASSERT_TRUE(act_one && act_two);
      EXPECT_LT(worst(one, expected), tolerance());
      EXPECT_LT(worst(*act_one, act_expected), tolerance());
      EXPECT_TRUE(at::equal(one, two) && at::equal(*act_one, *act_two));
      EXPECT_TRUE(at::equal(*act, *act_one));
    }
}

TEST_P(CudaActivations, backward_of_the_exact_gelu_equals_fp64) {
  for (const auto& [T, I, gap] : {std::tuple{1, 1, 0}, {7, 33, 0}, {300, 3072, 0}, {40, 257, 3}}) {
    SCOPED_TRACE(::testing::Message() << T << " x " << I << " + " << gap);
    const at::Tensor x = random(T, I, gap, 2), dact = random(T, I, gap);
    const at::Tensor act_expected = at::gelu(fp64(x)), expected = at::gelu_backward(fp64(dact), fp64(x));
    ASSERT_TRUE(gpu::exact_gelu_backward(dact, x));
    EXPECT_LT(worst(x, act_expected), tolerance());
    EXPECT_LT(worst(dact, expected), tolerance());
  }
}

TEST_P(CudaActivations, cross_entropy_equals_fp64_with_and_without_its_gradient_and_repeats_its_bits) {
  constexpr double kScale = 0.25;
  for (const auto& [T, V, gap] :
       {std::tuple{1, 1, 0}, {9, 1031, 0}, {33, 30522, 0}, {40, 50257, 7}, {257, 128256, 0}, {3, 262144, 0}})
    for (const double cap : {0.0, 30.0}) {
      SCOPED_TRACE(::testing::Message() << T << " x " << V << " + " << gap << ", cap " << cap);
      at::Tensor logits = random(T, V, gap, cap > 0 ? cap : 4);
      if (cap > 0) cap_logits(logits, cap);
      at::Tensor targets = at::randint(V, {T}, at::kLong), expected = fp64(logits);
      if (T > 1) targets[1] = -100;
      at::Tensor loss_expected = at::empty({T}, at::kDouble);
      aten::cross_entropy(expected, targets, loss_expected, kScale, cap);
      const at::Tensor there = targets.to(logits.device());
      const at::Tensor loss = at::empty({T}, logits.options().dtype(at::kFloat)),
                       loss_two = at::empty_like(loss);
      const at::Tensor one = again(logits), two = again(logits);
      ASSERT_TRUE(gpu::cross_entropy(one, there, loss, std::nullopt, cap));
      EXPECT_TRUE(at::equal(one, logits));
      EXPECT_LT(worst(loss, loss_expected), 4e-6);
      ASSERT_TRUE(gpu::cross_entropy(one, there, loss, kScale, cap));
      ASSERT_TRUE(gpu::cross_entropy(two, there, loss_two, kScale, cap));
      EXPECT_LT(worst(loss, loss_expected), 4e-6);
      EXPECT_LT(worst(one, expected), tolerance());
      EXPECT_TRUE(at::equal(one, two) && at::equal(loss, loss_two));
    }
}

INSTANTIATE_TEST_SUITE_P(Formats, CudaActivations, ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& info) { return std::string(at::toString(info.param)); });

}  // namespace
}  // namespace trireme::cuda_activation_test
