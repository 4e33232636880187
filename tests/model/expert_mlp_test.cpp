// The law of low precision for a mixture of experts, beside one that every token has: its error to the fp64
// truth is at most twice that of plain libtorch in the same precision. All experts are chosen, so that rounding
// sends no token elsewhere. Truth and plain are the definition under autograd: a sum over experts of
// probability times gated MLP, and a share of the shared one.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "trireme/model/families/decoder_mlp.h"
#include "trireme/model/families/decoder_units.h"
#include "trireme/model/model_family.h"

#include "tests/support/relative_error.h"

namespace trireme::expert_mlp_test {
namespace {

using testing::relative_error;

constexpr int64_t kM = 64, kI = 24, kE = 5, kShared = 56, kT = 40;

ModelConfig config(bool sums_to_one) {
  return parse_model_config({{"model_type", "qwen2_moe"},
                             {"shared_expert_intermediate_size", kShared},
                             {"vocab_size", 100},
                             {"hidden_size", kM},
                             {"moe_intermediate_size", kI},
                             {"num_experts", kE},
                             {"num_experts_per_tok", kE},
                             {"norm_topk_prob", sums_to_one},
                             {"num_attention_heads", 4},
                             {"num_key_value_heads", 2},
                             {"num_hidden_layers", 1}},
                            "test");
}

struct Case {
  at::Tensor router = at::randn({kE, kM}) * 0.2, gate_up = at::randn({kE * 2 * kI, kM}) * 0.2,
             down = at::randn({kE * kM, kI}) * 0.2, shared_gate_up = at::randn({2 * kShared, kM}) * 0.2,
             shared_down = at::randn({kM, kShared}) * 0.2, shared_gate = at::randn({1, kM}) * 0.2,
             normed = at::randn({kT, kM}), x1 = at::randn({kT, kM}), dy = at::randn({kT, kM});
  explicit Case(at::ScalarType dtype) {  // exact in every dtype
    for (at::Tensor* x :
         {&router, &gate_up, &down, &shared_gate_up, &shared_down, &shared_gate, &normed, &x1, &dy})
      *x = x->to(dtype);
  }
};
// gate|up -> act
at::Tensor swiglu(const at::Tensor& gate_up) {
  const std::vector<at::Tensor> halves = gate_up.chunk(2, 1);
  return at::silu(halves[0]) * halves[1];
}

using Results = std::vector<std::pair<std::string, at::Tensor>>;

Results by_definition(const Case& in, at::ScalarType dtype) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& x :
       {in.normed, in.router, in.gate_up, in.down, in.shared_gate_up, in.shared_down, in.shared_gate})
    leaves.push_back(x.to(dtype, false, /*copy=*/true).requires_grad_(true));
  const at::Tensor &normed = leaves[0], p = at::softmax(at::linear(normed, leaves[1]), 1);
  at::Tensor y = in.x1.to(dtype);
  for (int64_t e = 0; e < kE; ++e) {
    const at::Tensor act = swiglu(at::linear(normed, leaves[2].narrow(0, e * 2 * kI, 2 * kI)));
    y = y + p.narrow(1, e, 1) * at::linear(act, leaves[3].narrow(0, e * kM, kM));
  }
  y = y + at::sigmoid(at::linear(normed, leaves[6])) *
              at::linear(swiglu(at::linear(normed, leaves[4])), leaves[5]);
  y.backward(in.dy.to(dtype));
  return {{"y", y.detach()},
          {"d normed", leaves[0].grad()},
          {"d router", leaves[1].grad()},
          {"d gate_up", leaves[2].grad()},
          {"d down", leaves[3].grad()},
          {"d shared gate_up", leaves[4].grad()},
          {"d shared down", leaves[5].grad()},
          {"d shared gate", leaves[6].grad()}};
}

Results by_mlp(const Case& in, const ModelConfig& config, bool keeps) {
  const auto dtype = in.normed.scalar_type();
  const UnitSpec unit = make_model_layout(config).units[1];
  UnitWeights w(std::vector<at::Tensor>(unit.tensors.size()));
  w[decoder::kRouter] = in.router;
  w[decoder::kGateUp] = in.gate_up;
  w[decoder::kDown] = in.down;
  w[decoder::kSharedGateUp] = in.shared_gate_up;
  w[decoder::kSharedDown] = in.shared_down;
  w[decoder::kSharedGate] = in.shared_gate;
  const auto mlp = decoder::make_expert_mlp(config);
  const at::Tensor kept = keeps ? at::empty({kT, config.mlp_kept_width}, in.normed.options()) : at::Tensor();
  at::Tensor y = in.x1.clone();
  mlp->forward(w, in.normed, kept, y);
  UnitGradients gradients(at::full({unit.elements}, std::nan("")), unit, SumState::undefined);
  const at::Tensor dnormed = mlp->backward(w, gradients, {}, in.normed, in.dy, kept).dnormed_TM;
  EXPECT_EQ(dnormed.scalar_type(), dtype);
  return {{"y", y},
          {"d normed", dnormed},
          {"d router", gradients.to_add(decoder::kRouter)},
          {"d gate_up", gradients.to_add(decoder::kGateUp)},
          {"d down", gradients.to_add(decoder::kDown)},
          {"d shared gate_up", gradients.to_add(decoder::kSharedGateUp)},
          {"d shared down", gradients.to_add(decoder::kSharedDown)},
          {"d shared gate", gradients.to_add(decoder::kSharedGate)}};
}

TEST(ExpertMlp, has_at_most_twice_the_error_of_the_plain_one_in_its_precision) {
  at::manual_seed(3);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const Case in(dtype);
    const Results truth = by_definition(in, at::kDouble), plain = by_definition(in, dtype);
    const double half_a_last_place = dtype == at::kFloat ? 6e-8 : dtype == at::kHalf ? 5e-4 : 2e-3;
    for (const bool sums_to_one : {false, true})
      for (const bool keeps : {false, true}) {
        const Results got = by_mlp(in, config(sums_to_one), keeps);
        for (size_t i = 0; i < truth.size(); ++i)
          EXPECT_LE(relative_error(got[i].second, truth[i].second),
                    std::max(2 * relative_error(plain[i].second, truth[i].second), half_a_last_place))
              << truth[i].first << " in " << dtype << (keeps ? ", kept" : "");
      }
  }
}

}  // namespace
}  // namespace trireme::expert_mlp_test
