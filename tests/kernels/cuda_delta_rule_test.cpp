// The gated delta rule on a GPU, by its kernel and for widths that it does not take, against the same in fp64 on the
// CPU; the same bits again when run again. Skipped where there is no GPU. (The kernel is also played on the host:
// played_delta_recurrence_test.cpp.)
#include <gtest/gtest.h>

#include "trireme/kernels/delta_rule.h"
#include "trireme/kernels/document_begins.h"

#include "tests/support/device_under_test.h"
#include "tests/support/relative_error.h"

namespace trireme::cuda_delta_rule_test {
namespace {

struct Sizes {
  int64_t batch, tokens, key_heads, value_heads, key_width, value_width;
  int64_t segment_chunks = 0;
  at::ScalarType dtype = at::kFloat;
};

class CudaDeltaRule : public ::testing::TestWithParam<Sizes> {
 protected:
  void SetUp() override {
    if (!testing::device_under_test()) GTEST_SKIP() << "no GPU here";
    at::manual_seed(13);
  }
};

DeltaRuleInputs to(const DeltaRuleInputs& in, at::Device device, at::ScalarType dtype) {
  const auto moved = [&](const at::Tensor& x) { return x.to(device).to(dtype); };
  const at::Tensor decay = in.decay_BSV.to(device).to(dtype == at::kDouble ? at::kDouble : at::kFloat);
  return {moved(in.q_BSKD), moved(in.k_BSKD), moved(in.v_BSVD), decay, moved(in.beta_BSV)};
}

std::vector<at::Tensor> results_of(const DeltaRuleInputs& in, const at::Tensor& d_o, DeltaRuleSpec spec) {
  spec.document_begins_BS = spec.document_begins_BS.to(in.v_BSVD.device());
  const DeltaRuleOutput output = delta_rule(in, spec, DeltaStates::kept);
  const DeltaRuleGradients d =
      delta_rule_backward(d_o.to(in.v_BSVD.options()), in, output.states_GBVDD, spec);
  return {output.o_BSVD, d.dq_BSKD, d.dk_BSKD, d.dv_BSVD, d.ddecay_BSV, d.dbeta_BSV};
}

TEST_P(CudaDeltaRule, equals_fp64_on_the_cpu_and_repeats_its_bits) {
  const Sizes& z = GetParam();
  const auto random = [&](int64_t heads, int64_t width) {
    return at::randn({z.batch, z.tokens, heads, width});
  };
  const DeltaRuleInputs in{random(z.key_heads, z.key_width), random(z.key_heads, z.key_width),
                           random(z.value_heads, z.value_width),
                           at::randn({z.batch, z.tokens, z.value_heads}).mul(2).sub(2).exp().neg(),
                           at::rand({z.batch, z.tokens, z.value_heads})};
  const at::Tensor d_o = random(z.value_heads, z.value_width);
  DeltaRuleSpec spec{.segment_chunks = z.segment_chunks};
  for (int64_t head = 0; head < z.value_heads; ++head)
    spec.key_of_value.push_back(head * z.key_heads / z.value_heads);
  spec.document_begins_BS = document_begins(
      std::vector<Documents>(static_cast<size_t>(z.batch), Documents({0, z.tokens / 3, z.tokens})));
  const DeltaRuleInputs there = to(in, *testing::device_under_test(), z.dtype);
  const auto expected = results_of(to(there, at::kCPU, at::kDouble), d_o.to(z.dtype), spec);
  const auto got = results_of(there, d_o, spec), again = results_of(there, d_o, spec);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_LT(testing::relative_error(got[i].cpu(), expected[i]), z.dtype == at::kFloat ? 2e-5 : 8e-3) << i;
    EXPECT_TRUE(at::equal(got[i], again[i])) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(OfSizes, CudaDeltaRule,
                         ::testing::Values(Sizes{1, 5000, 2, 4, 128, 128}, Sizes{2, 300, 2, 3, 20, 24, 2},
                                           Sizes{1, 2500, 1, 1, 256, 64, 8}, Sizes{1, 200, 2, 2, 18, 22},
                                           Sizes{2, 1500, 2, 4, 64, 128, 4, at::kBFloat16}),
                         [](const auto& of) {
                           return std::to_string(of.param.tokens) + "_tokens_of_" +
                                  std::to_string(of.param.key_width) + "_by_" +
                                  std::to_string(of.param.value_width);
                         });

}  // namespace
}  // namespace trireme::cuda_delta_rule_test
