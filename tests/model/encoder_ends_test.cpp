// An encoder's embedding and head against the same formulas written out under autograd in fp64.
#include <cmath>
#include <string>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/memory/token_tiles.h"
#include "trireme/model/embedding.h"
#include "trireme/model/head.h"

#include "tests/support/error_message.h"
#include "tests/support/relative_error.h"

namespace trireme::encoder_ends_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::relative_error;

constexpr int64_t kV = 50, kM = 24, kPositions = 16, kTypes = 2, kT = 37;
constexpr double kEps = 1e-5;

at::Tensor random(at::IntArrayRef shape, double spread, double center, uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn(shape, generator, at::kDouble) * spread + center;
}
at::Tensor random_ids(int64_t below, uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randint(0, below, {kT}, generator, at::kLong);
}
at::Tensor leaf(const at::Tensor& values) {
  return values.clone().requires_grad_(true);
}

at::Tensor written_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const at::Tensor centered = x - x.mean(-1, true);
  return centered / at::sqrt(centered.square().mean(-1, true) + kEps) * weight + bias;
}

EmbeddingTensors random_embedding() {
  return {random({kV, kM}, 1, 0, 1), random({kPositions, kM}, 1, 0, 2), random({kTypes, kM}, 1, 0, 3),
          random({kM}, 0.3, 1, 4), random({kM}, 0.5, 0, 5)};
}

TEST(EncoderEmbedding, both_ways_equal_autograd_for_any_tiles_and_padding_teaches_nothing) {
  constexpr int64_t padding = 7;
  const EmbeddingTensors w = random_embedding();
  EmbeddedTokens embedded{random_ids(kV, 6), random_ids(kPositions, 7)};
  for (const int64_t place : {3, 20}) embedded.tokens[place] = padding;
  const at::Tensor dx = random({kT, kM}, 1, 0, 8);

  const at::Tensor words = leaf(w.words), positions = leaf(w.positions), types = leaf(w.token_types);
  const at::Tensor norm = leaf(w.norm), norm_bias = leaf(w.norm_bias);
  const at::Tensor row = words.index_select(0, embedded.tokens);
  const at::Tensor no_padding = embedded.tokens.ne(padding).unsqueeze(1);
  const at::Tensor taught = at::where(no_padding, row, row.detach());
  const at::Tensor truth =
      written_norm(taught + positions.index_select(0, embedded.positions) + types[0], norm, norm_bias);
  truth.backward(dx);

  for (const int64_t tile_tokens : {kT, int64_t{10}}) {
    const at::Tensor x = at::empty({kT, kM}, at::kDouble);
    EmbeddingTensors d{at::zeros_like(w.words), at::zeros_like(w.positions), at::zeros_like(w.token_types),
                       at::zeros_like(w.norm), at::zeros_like(w.norm_bias)};
    for_tiles(kT, tile_tokens, [&](int64_t begin, int64_t count) {
      const EmbeddedTokens rows = embedded.rows(begin, count);
      embedding_forward(w, kEps, rows, x.narrow(0, begin, count));
      embedding_backward(w, d, kEps, padding, rows, dx.narrow(0, begin, count));
    });
    EXPECT_LT(relative_error(x, truth.detach()), 1e-12);
    EXPECT_LT(relative_error(d.words, words.grad()), 1e-12);
    EXPECT_LT(relative_error(d.positions, positions.grad()), 1e-12);
    EXPECT_LT(relative_error(d.token_types, types.grad()), 1e-12);
    EXPECT_LT(relative_error(d.norm, norm.grad()), 1e-12);
    EXPECT_LT(relative_error(d.norm_bias, norm_bias.grad()), 1e-12);
    EXPECT_EQ(d.words[padding].abs().max().item<double>(), 0);
    EXPECT_GT(d.token_types[0].abs().max().item<double>(), 0.1);
  }
}

TEST(EncoderEmbedding, positions_beyond_the_table_are_refused_with_its_size) {
  ModelConfig config;
  config.family = ModelFamily::bert;
  config.max_position_embeddings = 512;
  const auto refusal = [&](int64_t tokens) {
    return testing::message_of<ConfigError>([&] { check_positions(config, tokens); });
  };
  EXPECT_EQ(refusal(512), "no error");
  EXPECT_THAT(refusal(513), AllOf(HasSubstr("513 tokens"), HasSubstr("max_position_embeddings 512")));
  config.family = ModelFamily::llama;
  EXPECT_EQ(refusal(513), "no error") << "rotary positions have no end";
}

TEST(EncoderHead, loss_and_gradients_equal_autograd_for_any_tiles) {
  const HeadTensors w{random({kM}, 0.3, 1, 10),     random({kV, kM}, 0.5, 0, 11), random({kM}, 0.5, 0, 12),
                      random({kM, kM}, 0.4, 0, 13), random({kM}, 0.5, 0, 14),     random({kV}, 0.5, 0, 15)};
  const at::Tensor x = random({kT, kM}, 1, 0, 16);
  at::Tensor targets = random_ids(kV, 17);
  targets.masked_fill_(random_ids(3, 18).ne(0),
                       -100);  // as masked tokens leave them: most positions predict nothing
  const double scale = 0.125;

  const at::Tensor leaf_x = leaf(x), norm = leaf(w.norm), matrix = leaf(w.matrix),
                   norm_bias = leaf(w.norm_bias);
  const at::Tensor dense = leaf(w.dense), dense_bias = leaf(w.dense_bias), bias = leaf(w.bias);
  const at::Tensor inner = at::matmul(leaf_x, dense.t()) + dense_bias;
  const at::Tensor act = inner * 0.5 * (1 + at::erf(inner * M_SQRT1_2));
  const at::Tensor logits = at::matmul(written_norm(act, norm, norm_bias), matrix.t()) + bias;
  const at::Tensor valid = targets.ge(0);
  const at::Tensor picked = logits.gather(1, targets.clamp_min(0).unsqueeze(1)).squeeze(1);
  const at::Tensor losses = (at::logsumexp(logits, 1) - picked) * valid;
  (losses.sum() * scale).backward();

  for (const int64_t tile_tokens : {kT, int64_t{10}}) {
    const HeadOptions options{.eps = kEps, .tile_tokens = tile_tokens};
    at::Tensor seen = at::empty({kT, kV}, at::kDouble);
    const at::Tensor loss = head_loss(w, options, x, targets, [&](int64_t first_row, const at::Tensor& rows) {
      seen.narrow(0, first_row, rows.size(0)).copy_(rows);
    });
    EXPECT_LT(relative_error(seen, logits.detach()), 1e-12);
    EXPECT_LT(relative_error(loss.to(at::kDouble), losses.detach()), 1e-6) << "losses are fp32";
    HeadTensors d{at::zeros_like(w.norm),  at::zeros_like(w.matrix),     at::zeros_like(w.norm_bias),
                  at::zeros_like(w.dense), at::zeros_like(w.dense_bias), at::zeros_like(w.bias)};
    at::Tensor dx = x.clone();
    EXPECT_TRUE(at::equal(head_loss_and_gradient(w, options, dx, targets, scale, d), loss));
    EXPECT_LT(relative_error(dx, leaf_x.grad()), 1e-12);
    EXPECT_LT(relative_error(d.norm, norm.grad()), 1e-12);
    EXPECT_LT(relative_error(d.matrix, matrix.grad()), 1e-12);
    EXPECT_LT(relative_error(d.norm_bias, norm_bias.grad()), 1e-12);
    EXPECT_LT(relative_error(d.dense, dense.grad()), 1e-12);
    EXPECT_LT(relative_error(d.dense_bias, dense_bias.grad()), 1e-12);
    EXPECT_LT(relative_error(d.bias, bias.grad()), 1e-12);
  }
}

}  // namespace
}  // namespace trireme::encoder_ends_test
