// An encoder's embedding and head against the same formulas written out under autograd in fp64.
#include <map>
#include <string>

#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/kernels/token_tiles.h"
#include "trireme/model/embedding.h"
#include "trireme/model/head.h"
#include "trireme/model/model_family.h"

#include "tests/support/error_message.h"
#include "tests/support/relative_error.h"
#include "tests/support/unit_parameters.h"

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

constexpr int64_t kPadding = 7;

ModelConfig config() {
  return parse_model_config({{"model_type", "bert"},
                             {"vocab_size", kV},
                             {"hidden_size", kM},
                             {"num_attention_heads", 4},
                             {"num_hidden_layers", 1},
                             {"max_position_embeddings", kPositions},
                             {"type_vocab_size", kTypes},
                             {"layer_norm_eps", kEps},
                             {"pad_token_id", kPadding}},
                            "test");
}

at::Tensor random_flat(const UnitSpec& unit, const std::string& prefix) {
  at::Tensor flat = at::zeros({unit.elements}, at::kDouble);
  uint64_t seed = 0;
  for (const auto& [name, view] : testing::parameters_of(unit, flat, prefix)) {
    const bool norm = name.ends_with("LayerNorm.weight");
    view.copy_(random(view.sizes(), norm ? 0.3 : 0.5, norm ? 1 : 0, ++seed));
  }
  return flat;
}
std::map<std::string, at::Tensor> leaves(const UnitSpec& unit, const at::Tensor& flat,
                                         const std::string& prefix) {
  std::map<std::string, at::Tensor> result;
  for (const auto& [name, view] : testing::parameters_of(unit, flat, prefix)) result[name] = leaf(view);
  return result;
}

TEST(EncoderEmbedding, both_ways_equal_autograd_for_any_tiles_and_padding_teaches_nothing) {
  const std::string prefix = "bert.embeddings.";
  const ModelConfig config = encoder_ends_test::config();
  const UnitSpec unit = make_model_layout(config).units.front();
  const auto embedding = config.family->embedding(config);
  const at::Tensor flat = random_flat(unit, prefix);
  EmbeddedTokens embedded{random_ids(kV, 6), random_ids(kPositions, 7)};
  for (const int64_t position : {3, 20}) embedded.tokens[position] = kPadding;
  const at::Tensor dx = random({kT, kM}, 1, 0, 8);

  auto w = leaves(unit, flat, prefix);
  const at::Tensor row = w.at("word_embeddings.weight").index_select(0, embedded.tokens);
  const at::Tensor no_padding = embedded.tokens.ne(kPadding).unsqueeze(1);
  const at::Tensor taught = at::where(no_padding, row, row.detach());
  const at::Tensor truth =
      written_norm(taught + w.at("position_embeddings.weight").index_select(0, embedded.positions) +
                       w.at("token_type_embeddings.weight")[0],
                   w.at("LayerNorm.weight"), w.at("LayerNorm.bias"));
  truth.backward(dx);

  for (const int64_t tile_tokens : {kT, int64_t{10}}) {
    const at::Tensor x = at::empty({kT, kM}, at::kDouble);
    const at::Tensor sums = at::full_like(flat, std::nan(""));
    UnitGradients gradients(sums, unit, SumState::undefined);
    for_tiles(kT, tile_tokens, [&](int64_t begin, int64_t count) {
      const EmbeddedTokens rows = embedded.rows(begin, count);
      embedding->forward(bind_weights(flat, unit), rows, x.narrow(0, begin, count));
      embedding->backward(bind_weights(flat, unit), gradients, rows, dx.narrow(0, begin, count));
    });
    gradients.finish();
    EXPECT_LT(relative_error(x, truth.detach()), 1e-12);
    auto d = testing::parameters_of(unit, sums, prefix);
    for (const auto& [name, got] : d) EXPECT_LT(relative_error(got, w.at(name).grad()), 1e-12) << name;
    EXPECT_EQ(d.at("word_embeddings.weight")[kPadding].abs().max().item<double>(), 0);
    EXPECT_GT(d.at("token_type_embeddings.weight")[0].abs().max().item<double>(), 0.1);
  }
}

TEST(EncoderEmbedding, positions_beyond_the_table_are_refused_with_its_size) {
  ModelConfig config;
  config.rotates = false;
  config.max_position_embeddings = 512;
  const auto refusal = [&](int64_t tokens) {
    return testing::message_of<ConfigError>([&] { check_positions(config, tokens); });
  };
  EXPECT_EQ(refusal(512), "no error");
  EXPECT_THAT(refusal(513), AllOf(HasSubstr("513 tokens"), HasSubstr("max_position_embeddings 512")));
  config.rotates = true;
  EXPECT_EQ(refusal(513), "no error") << "rotary positions have no end";
}

TEST(EncoderHead, loss_and_gradients_equal_autograd_for_any_tiles) {
  const std::string prefix = "cls.predictions.";
  const ModelConfig config = encoder_ends_test::config();
  const UnitSpec unit = make_model_layout(config).units.back();
  const auto head = config.family->head(config);
  const at::Tensor flat = random_flat(unit, prefix), matrix_values = random({kV, kM}, 0.5, 0, 11);
  const auto with_matrix = [&](const at::Tensor& values, const at::Tensor& matrix) {
    UnitWeights weights = bind_weights(values, unit);
    weights[kOutputMatrix] = matrix;
    return weights;
  };
  const at::Tensor x = random({kT, kM}, 1, 0, 16);
  at::Tensor targets = random_ids(kV, 17);
  targets.masked_fill_(random_ids(3, 18).ne(0),
                       -100);  // as masked tokens leave them: most positions predict nothing
  const double scale = 0.125;

  auto w = leaves(unit, flat, prefix);
  const at::Tensor leaf_x = leaf(x), matrix = leaf(matrix_values);
  const at::Tensor inner =
      at::matmul(leaf_x, w.at("transform.dense.weight").t()) + w.at("transform.dense.bias");
  const at::Tensor act = inner * 0.5 * (1 + at::erf(inner * M_SQRT1_2));
  const at::Tensor normed =
      written_norm(act, w.at("transform.LayerNorm.weight"), w.at("transform.LayerNorm.bias"));
  const at::Tensor logits = at::matmul(normed, matrix.t()) + w.at("bias");
  const at::Tensor valid = targets.ge(0);
  const at::Tensor picked = logits.gather(1, targets.clamp_min(0).unsqueeze(1)).squeeze(1);
  const at::Tensor losses = (at::logsumexp(logits, 1) - picked) * valid;
  (losses.sum() * scale).backward();

  for (const int64_t tile_tokens : {kT, int64_t{10}}) {
    at::Tensor seen = at::empty({kT, kV}, at::kDouble);
    const at::Tensor loss = head->loss(with_matrix(flat, matrix_values), tile_tokens, x, targets,
                                       [&](int64_t first_row, const at::Tensor& rows) {
                                         seen.narrow(0, first_row, rows.size(0)).copy_(rows);
                                       });
    EXPECT_LT(relative_error(seen, logits.detach()), 1e-12);
    EXPECT_LT(relative_error(loss.to(at::kDouble), losses.detach()), 1e-6) << "losses are fp32";
    const at::Tensor sums = at::full_like(flat, std::nan(""));
    const at::Tensor dmatrix = at::full_like(matrix_values, std::nan(""));
    const UnitSpec words{
        .name = "embedding", .parameters = {}, .elements = kV * kM, .tensors = {{0, kV, kM}}};
    UnitGradients gradients(sums, unit, SumState::undefined),
        embedding(dmatrix.flatten(), words, SumState::undefined);
    gradients.exchange(kOutputMatrix, embedding, kWords);
    at::Tensor dx = x.clone();
    EXPECT_TRUE(at::equal(
        head->loss_and_gradient(with_matrix(flat, matrix_values), tile_tokens, dx, targets, scale, gradients),
        loss));
    gradients.finish();
    EXPECT_LT(relative_error(dx, leaf_x.grad()), 1e-12);
    EXPECT_LT(relative_error(dmatrix, matrix.grad()), 1e-12);
    for (const auto& [name, got] : testing::parameters_of(unit, sums, prefix))
      EXPECT_LT(relative_error(got, w.at(name).grad()), 1e-12) << name;
  }
}

}  // namespace
}  // namespace trireme::encoder_ends_test
