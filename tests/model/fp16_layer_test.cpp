// The law of low precision for a decoder layer's token-wise halves and for the head: with values stored in
// fp16, and matmuls in fp32 (CPU) or fp16 (GPU), the error to the fp64 truth is at most twice that of plain
// libtorch in fp16. Truth and plain are the same formulas under autograd, in fp64 and fp16.
#include <array>
#include <string>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "trireme/model/head.h"
#include "trireme/model/layer.h"
#include "trireme/model/model_family.h"

#include "tests/support/relative_error.h"
#include "tests/support/unit_parameters.h"

namespace trireme::fp16_layer_test {
namespace {

using testing::relative_error;

constexpr int64_t kM = 64, kH = 4, kK = 2, kD = 16, kI = 96, kN = kH + 2 * kK, kT = 40, kV = 300;
constexpr double kEps = 1e-5;

at::Tensor random(at::IntArrayRef shape, double spread, uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return (at::randn(shape, generator, at::kFloat) * spread).to(at::kHalf);  // exact in every dtype
}

// Named results, in one order for the truth, the plain version and Trireme.
using Results = std::vector<std::pair<std::string, at::Tensor>>;

void expect_at_most_twice(const Results& got, const Results& plain, const Results& truth) {
  constexpr double kHalfALastPlace = 5e-4;
  ASSERT_EQ(got.size(), truth.size());
  for (size_t at = 0; at < got.size(); ++at) {
    const at::Tensor& true_value = truth[at].second;
    EXPECT_LE(relative_error(got[at].second, true_value),
              std::max(2 * relative_error(plain[at].second, true_value), kHalfALastPlace))
        << got[at].first;
  }
}

struct Weights {
  at::Tensor input_norm, qkv, q_norm, k_norm, o, post_norm, gate_up, down;
  Weights to(at::ScalarType dtype) const {
    const auto cast = [&](const at::Tensor& x) { return x.to(dtype, false, /*copy=*/true); };
    return {cast(input_norm), cast(qkv),       cast(q_norm),  cast(k_norm),
            cast(o),          cast(post_norm), cast(gate_up), cast(down)};
  }
};

Weights random_weights() {
  return {random({kM}, 1, 1),           random({kN * kD, kM}, 0.2, 2), random({kD}, 1, 3),
          random({kD}, 1, 4),           random({kM, kH * kD}, 0.2, 5), random({kM}, 1, 6),
          random({2 * kI, kM}, 0.2, 7), random({kM, kI}, 0.2, 8)};
}

// Statistics in fp32 at least, as Hugging Face's modules do.
at::Tensor plain_norm(const at::Tensor& x, const at::Tensor& weight) {
  const at::Tensor wide = x.scalar_type() == at::kDouble ? x : x.to(at::kFloat);
  return (wide * at::rsqrt(wide.square().mean(-1, true) + kEps)).to(x.scalar_type()) * weight;
}

at::Tensor plain_rotary(const at::Tensor& x, const RotaryTable& table) {
  const at::Tensor cos = table.cos.unsqueeze(1).to(x.scalar_type());
  const at::Tensor sin = table.sin.unsqueeze(1).to(x.scalar_type());
  const at::Tensor first = x.narrow(2, 0, kD / 2), second = x.narrow(2, kD / 2, kD / 2);
  return at::cat({first * cos - second * sin, second * cos + first * sin}, 2);
}

struct Inputs {
  at::Tensor x = random({kT, kM}, 1, 20), o = random({kT, kH*kD}, 1, 21);
  at::Tensor dqkv = random({kT, kN, kD}, 1, 22), dy = random({kT, kM}, 1, 23);
};

Results autograd_layer(const Weights& all, const Inputs& in, const RotaryTable& table, at::ScalarType dtype) {
  const Weights w = all.to(dtype);
  const at::Tensor x = in.x.to(dtype, false, true), o = in.o.to(dtype, false, true);
  const std::vector<at::Tensor> leaves = {x,        o,   w.input_norm, w.qkv,     w.q_norm,
                                          w.k_norm, w.o, w.post_norm,  w.gate_up, w.down};
  for (const at::Tensor& leaf : leaves) leaf.requires_grad_(true);
  const at::Tensor heads = at::linear(plain_norm(x, w.input_norm), w.qkv).view({kT, kN, kD});
  const at::Tensor qkv = at::cat(
      {plain_rotary(plain_norm(heads.narrow(1, 0, kH), w.q_norm), table),
       plain_rotary(plain_norm(heads.narrow(1, kH, kK), w.k_norm), table), heads.narrow(1, kH + kK, kK)},
      1);
  const at::Tensor x1 = x + at::linear(o, w.o);
  const at::Tensor gate_up = at::linear(plain_norm(x1, w.post_norm), w.gate_up);
  const at::Tensor act = at::silu(gate_up.narrow(1, 0, kI)) * gate_up.narrow(1, kI, kI);
  const at::Tensor y = x1 + at::linear(act, w.down);
  y.backward(in.dy.to(dtype), /*retain_graph=*/true);
  qkv.backward(in.dqkv.to(dtype));
  Results results = {{"qkv", qkv.detach()}, {"y", y.detach()}};
  const std::array<const char*, 10> names = {"dx",       "do",  "d input_norm", "d qkv",     "d q_norm",
                                             "d k_norm", "d o", "d post_norm",  "d gate_up", "d down"};
  for (size_t at = 0; at < leaves.size(); ++at) results.emplace_back(names.at(at), leaves[at].grad());
  return results;
}

ModelConfig config() {
  return parse_model_config({{"model_type", "qwen3"},
                             {"vocab_size", kV},
                             {"hidden_size", kM},
                             {"intermediate_size", kI},
                             {"num_attention_heads", kH},
                             {"num_key_value_heads", kK},
                             {"head_dim", kD},
                             {"num_hidden_layers", 1},
                             {"rms_norm_eps", kEps}},
                            "test");
}

// Parameters of the layer that lie behind each other from the one of that name on, `rows` in all.
at::Tensor rows_from(const UnitSpec& unit, const at::Tensor& flat, const std::string& name, int64_t rows) {
  const ParameterSpec& first = testing::parameter_of(unit, name);
  if (first.shape.size() == 1) return flat.narrow(0, first.offset, rows);
  return flat.narrow(0, first.offset, rows * first.shape[1]).view({rows, first.shape[1]});
}
Weights weights_in(const UnitSpec& unit, const at::Tensor& flat) {
  return {rows_from(unit, flat, "input_layernorm.weight", kM),
          rows_from(unit, flat, "q_proj.weight", kN * kD),
          rows_from(unit, flat, "q_norm.weight", kD),
          rows_from(unit, flat, "k_norm.weight", kD),
          rows_from(unit, flat, "o_proj.weight", kM),
          rows_from(unit, flat, "post_attention_layernorm.weight", kM),
          rows_from(unit, flat, "gate_proj.weight", 2 * kI),
          rows_from(unit, flat, "down_proj.weight", kM)};
}

Results layer_in_fp16(const Weights& all, const Inputs& in, const RotaryTable& table, at::ScalarType tile) {
  const ModelConfig config = fp16_layer_test::config();
  const UnitSpec unit = make_model_layout(config).units[1];
  const auto arithmetic = config.family->layer(config);
  const at::Tensor values = at::zeros({unit.elements}, tile),
                   sums = at::full({unit.elements}, std::nan(""), at::kFloat);
  const Weights w = weights_in(unit, values), d = weights_in(unit, sums);
  for (at::Tensor Weights::*const part :
       {&Weights::input_norm, &Weights::qkv, &Weights::q_norm, &Weights::k_norm, &Weights::o,
        &Weights::post_norm, &Weights::gate_up, &Weights::down})
    (w.*part).copy_(all.*part);
  const LayerTensors layer{bind_weights(values, unit), table, config.heads()};
  UnitGradients gradients(sums, unit, SumState::undefined);
  const at::Tensor qkv = at::empty({kT, kN, kD}, at::kHalf), y = at::empty({kT, kM}, at::kHalf);
  const at::Tensor dx = in.dy.clone(), d_o = at::empty({kT, kH * kD}, at::kHalf);
  arithmetic->before_attention_forward(layer, in.x, 0, qkv, {});
  arithmetic->after_attention_forward(layer, in.x, 0, in.o, {}, y, nullptr);
  arithmetic->after_attention_backward(layer, gradients, in.x, 0, in.o, {}, dx, nullptr, d_o);
  arithmetic->before_attention_backward(layer, gradients, in.x, 0, in.dqkv.clone(), {}, dx);
  return {{"qkv", qkv},
          {"y", y},
          {"dx", dx},
          {"do", d_o},
          {"d input_norm", d.input_norm},
          {"d qkv", d.qkv},
          {"d q_norm", d.q_norm},
          {"d k_norm", d.k_norm},
          {"d o", d.o},
          {"d post_norm", d.post_norm},
          {"d gate_up", d.gate_up},
          {"d down", d.down}};
}

TEST(Fp16Layer, errors_are_at_most_twice_those_of_plain_fp16) {
  const Weights weights = random_weights();
  const Inputs in;
  const at::Tensor angles =
      at::arange(kT, at::kFloat).unsqueeze(1) * at::exp(-at::arange(kD / 2, at::kFloat));
  const RotaryTable table{at::cos(angles), at::sin(angles)};
  const Results truth = autograd_layer(weights, in, table, at::kDouble);
  const Results plain = autograd_layer(weights, in, table, at::kHalf);
  for (const at::ScalarType tile : {at::kFloat, at::kHalf}) {
    SCOPED_TRACE(::testing::Message() << "matmuls in " << tile);
    expect_at_most_twice(layer_in_fp16(weights, in, table, tile), plain, truth);
  }
}

Results autograd_head(const at::Tensor& x_in, const at::Tensor& norm_in, const at::Tensor& matrix_in,
                      const at::Tensor& targets, double scale, at::ScalarType dtype) {
  const auto leaf = [&](const at::Tensor& t) { return t.to(dtype, false, true).requires_grad_(true); };
  const at::Tensor x = leaf(x_in), norm = leaf(norm_in), matrix = leaf(matrix_in);
  const at::Tensor logits = at::linear(plain_norm(x, norm), matrix);
  const at::Tensor wide = dtype == at::kDouble ? logits : logits.to(at::kFloat);
  const at::Tensor loss = -at::log_softmax(wide, 1).gather(1, targets.unsqueeze(1)).squeeze(1);
  (loss.sum() * scale).backward();
  return {{"loss", loss.detach()}, {"dx", x.grad()}, {"d norm", norm.grad()}, {"d matrix", matrix.grad()}};
}

struct HeadResult {
  at::Tensor loss, dx, dnorm, dmatrix;
};
HeadResult head_in_fp16(const at::Tensor& norm, const at::Tensor& matrix, at::ScalarType tile,
                        const at::Tensor& x, const at::Tensor& targets, double scale) {
  const ModelConfig config = fp16_layer_test::config();
  const UnitSpec unit = make_model_layout(config).units.back();
  const at::Tensor values = at::zeros({unit.elements}, tile),
                   sums = at::full({unit.elements}, std::nan(""), at::kFloat);
  rows_from(unit, values, "norm.weight", kM).copy_(norm);
  rows_from(unit, values, "lm_head.weight", kV).copy_(matrix);
  UnitGradients gradients(sums, unit, SumState::undefined);
  at::Tensor dx = x.clone();
  const at::Tensor loss = config.family->head(config)->loss_and_gradient(bind_weights(values, unit), 16, dx,
                                                                         targets, scale, gradients);
  return {loss, dx, rows_from(unit, sums, "norm.weight", kM), rows_from(unit, sums, "lm_head.weight", kV)};
}

TEST(Fp16Head, errors_are_at_most_twice_those_of_plain_fp16_under_a_loss_scale) {
  const double scale = 65536.0 / kT;
  const at::Tensor x = random({kT, kM}, 1, 30), norm = random({kM}, 1, 31),
                   matrix = random({kV, kM}, 0.1, 32);
  const at::Tensor targets = at::arange(kT, at::kLong) * 7;
  const Results truth = autograd_head(x, norm, matrix, targets, scale, at::kDouble);
  const Results plain = autograd_head(x, norm, matrix, targets, scale, at::kHalf);
  for (const at::ScalarType tile : {at::kFloat, at::kHalf}) {
    SCOPED_TRACE(::testing::Message() << "matmuls in " << tile);
    const HeadResult got = head_in_fp16(norm, matrix, tile, x, targets, scale);
    expect_at_most_twice(
        {{"loss", got.loss}, {"dx", got.dx}, {"d norm", got.dnorm}, {"d matrix", got.dmatrix}}, plain, truth);
  }
}

// The scaler's signal: a loss scale too large for fp16 leaves infinities or NaN in the gradients, not
// numbers.
TEST(Fp16Head, a_loss_scale_that_overflows_shows_in_the_gradients) {
  const at::Tensor norm = random({kM}, 1, 31), matrix = random({kV, kM}, 0.1, 32);
  const at::Tensor targets = at::arange(kT, at::kLong) * 7;
  for (const at::ScalarType tile : {at::kFloat, at::kHalf}) {
    const at::Tensor dx = head_in_fp16(norm, matrix, tile, random({kT, kM}, 1, 30), targets, 1e7).dx;
    EXPECT_TRUE(dx.isfinite().logical_not().any().item<bool>()) << tile;
  }
}

}  // namespace
}  // namespace trireme::fp16_layer_test
