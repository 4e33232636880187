// A decoder's head, with and without a cap on its logits, against the same formulas written out under
// autograd in fp64.
#include "trireme/model/head.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "trireme/model/model_family.h"

#include "tests/support/relative_error.h"
#include "tests/support/unit_parameters.h"

namespace trireme::head_test {
namespace {

using testing::relative_error;

constexpr int64_t kV = 50, kM = 24, kT = 37;
constexpr double kEps = 1e-5, kScale = 0.125;

at::Tensor random(at::IntArrayRef shape, double spread, uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn(shape, generator, at::kDouble) * spread;
}
at::Tensor leaf(const at::Tensor& values) {
  return values.clone().requires_grad_(true);
}

class DecoderHead : public ::testing::TestWithParam<double> {};

TEST_P(DecoderHead, loss_logits_and_gradients_equal_autograd_for_any_tiles) {
  ModelConfig config = parse_model_config({{"model_type", "llama"},
                                           {"vocab_size", kV},
                                           {"hidden_size", kM},
                                           {"intermediate_size", 32},
                                           {"num_attention_heads", 4},
                                           {"num_hidden_layers", 1},
                                           {"max_position_embeddings", 64},
                                           {"rms_norm_eps", kEps},
                                           {"tie_word_embeddings", false}},
                                          "test");
  config.logit_cap = GetParam();
  const UnitSpec unit = make_model_layout(config).units.back();
  const auto head = config.family->head(config);
  const at::Tensor flat = at::zeros({unit.elements}, at::kDouble);
  auto values = testing::parameters_of(unit, flat, "");
  const at::Tensor norm = values.at("model.norm.weight").copy_(random({kM}, 0.3, 1) + 1),
                   matrix = values.at("lm_head.weight").copy_(random({kV, kM}, 0.5, 2));
  const at::Tensor x = random({kT, kM}, 1, 3);
  at::Tensor targets = at::arange(kT, at::kLong);
  targets.narrow(0, 4, 9).fill_(-100);

  const at::Tensor leaf_x = leaf(x), leaf_norm = leaf(norm), leaf_matrix = leaf(matrix);
  const at::Tensor normed = leaf_x * at::rsqrt(leaf_x.square().mean(-1, true) + kEps) * leaf_norm;
  at::Tensor logits = at::matmul(normed, leaf_matrix.t());
  if (config.logit_cap > 0) logits = config.logit_cap * at::tanh(logits / config.logit_cap);
  const at::Tensor picked = logits.gather(1, targets.clamp_min(0).unsqueeze(1)).squeeze(1);
  const at::Tensor losses = (at::logsumexp(logits, 1) - picked) * targets.ge(0);
  (losses.sum() * kScale).backward();

  for (const int64_t tile_tokens : {kT, int64_t{10}}) {
    at::Tensor seen = at::empty({kT, kV}, at::kDouble);
    const at::Tensor loss = head->loss(bind_weights(flat, unit), tile_tokens, x, targets,
                                       [&](int64_t first_row, const at::Tensor& rows) {
                                         seen.narrow(0, first_row, rows.size(0)).copy_(rows);
                                       });
    EXPECT_LT(relative_error(seen, logits.detach()), 1e-12);
    EXPECT_LT(relative_error(loss, losses.detach()), 1e-6) << "losses are fp32";
    const at::Tensor sums = at::full_like(flat, std::nan(""));
    UnitGradients gradients(sums, unit, SumState::undefined);
    at::Tensor dx = x.clone();
    EXPECT_TRUE(at::equal(
        head->loss_and_gradient(bind_weights(flat, unit), tile_tokens, dx, targets, kScale, gradients),
        loss));
    gradients.finish();
    const auto d = testing::parameters_of(unit, sums, "");
    EXPECT_LT(relative_error(dx, leaf_x.grad()), 1e-12);
    EXPECT_LT(relative_error(d.at("model.norm.weight"), leaf_norm.grad()), 1e-12);
    EXPECT_LT(relative_error(d.at("lm_head.weight"), leaf_matrix.grad()), 1e-12);
  }
}

// Logits are normal, with a spread of about 2.4.
INSTANTIATE_TEST_SUITE_P(Caps, DecoderHead, ::testing::Values(0.0, 2.0, 30.0));

}  // namespace
}  // namespace trireme::head_test
