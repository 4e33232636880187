// The law of low precision for a decoder layer's token-wise halves and for the head: with values stored in
// fp16, and matmuls in fp32 (CPU) or fp16 (GPU), the error to the fp64 truth is at most twice that of plain
// libtorch in fp16. Truth and plain are the same formulas under autograd, in fp64 and fp16.
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "trireme/model/head.h"
#include "trireme/model/layer_halves.h"

#include "tests/support/relative_error.h"

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

LayerWeights layer_weights_of(const Weights& w) {
  LayerWeights t;
  t.input_norm = w.input_norm;
  t.qkv = w.qkv;
  t.q_norm = w.q_norm;
  t.k_norm = w.k_norm;
  t.o = w.o;
  t.post_norm = w.post_norm;
  t.gate_up = w.gate_up;
  t.down = w.down;
  return t;
}

Results layer_in_fp16(const Weights& all, const Inputs& in, const RotaryTable& table, at::ScalarType tile) {
  ModelConfig config;
  config.num_attention_heads = kH;
  config.num_key_value_heads = kK;
  config.head_dim = kD;
  config.rms_norm_eps = kEps;
  const LayerTensors layer{&config, layer_weights_of(all.to(tile)), table};
  const auto zeros = [](const at::Tensor& x) { return at::zeros(x.sizes(), at::kFloat); };
  LayerWeights gradients =
      layer_weights_of({zeros(all.input_norm), zeros(all.qkv), zeros(all.q_norm), zeros(all.k_norm),
                        zeros(all.o), zeros(all.post_norm), zeros(all.gate_up), zeros(all.down)});
  const at::Tensor qkv = at::empty({kT, kN, kD}, at::kHalf), y = at::empty({kT, kM}, at::kHalf);
  const at::Tensor dx = at::empty({kT, kM}, at::kHalf), d_o = at::empty({kT, kH * kD}, at::kHalf);
  attention_input_forward(layer, in.x, 0, qkv);
  attention_output_forward(layer, in.x, in.o, y, nullptr);
  attention_output_backward(layer, gradients, in.x, in.o, in.dy, nullptr, dx, d_o);
  attention_input_backward(layer, gradients, in.x, 0, in.dqkv.clone(), dx);
  return {{"qkv", qkv},
          {"y", y},
          {"dx", dx},
          {"do", d_o},
          {"d input_norm", gradients.input_norm},
          {"d qkv", gradients.qkv},
          {"d q_norm", gradients.q_norm},
          {"d k_norm", gradients.k_norm},
          {"d o", gradients.o},
          {"d post_norm", gradients.post_norm},
          {"d gate_up", gradients.gate_up},
          {"d down", gradients.down}};
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

TEST(Fp16Head, errors_are_at_most_twice_those_of_plain_fp16_under_a_loss_scale) {
  const double scale = 65536.0 / kT;
  const at::Tensor x = random({kT, kM}, 1, 30), norm = random({kM}, 1, 31),
                   matrix = random({kV, kM}, 0.1, 32);
  const at::Tensor targets = at::arange(kT, at::kLong) * 7;
  const Results truth = autograd_head(x, norm, matrix, targets, scale, at::kDouble);
  const Results plain = autograd_head(x, norm, matrix, targets, scale, at::kHalf);
  for (const at::ScalarType tile : {at::kFloat, at::kHalf}) {
    SCOPED_TRACE(::testing::Message() << "matmuls in " << tile);
    HeadTensors gradients{at::zeros({kM}), at::zeros({kV, kM})};
    at::Tensor dx = x.clone();
    const at::Tensor loss = head_loss_and_gradient(
        {norm.to(tile), matrix.to(tile)}, {.eps = kEps, .tile_tokens = 16}, dx, targets, scale, gradients);
    expect_at_most_twice(
        {{"loss", loss}, {"dx", dx}, {"d norm", gradients.norm}, {"d matrix", gradients.matrix}}, plain,
        truth);
  }
}

// The scaler's signal: a loss scale too large for fp16 leaves infinities or NaN in the gradients, not numbers.
TEST(Fp16Head, a_loss_scale_that_overflows_shows_in_the_gradients) {
  const at::Tensor norm = random({kM}, 1, 31), matrix = random({kV, kM}, 0.1, 32);
  const at::Tensor targets = at::arange(kT, at::kLong) * 7;
  for (const at::ScalarType tile : {at::kFloat, at::kHalf}) {
    HeadTensors gradients{at::zeros({kM}), at::zeros({kV, kM})};
    at::Tensor dx = random({kT, kM}, 1, 30);
    head_loss_and_gradient({norm.to(tile), matrix.to(tile)}, {.eps = kEps, .tile_tokens = 16}, dx, targets,
                           1e7, gradients);
    EXPECT_TRUE(dx.isfinite().logical_not().any().item<bool>()) << tile;
  }
}

}  // namespace
}  // namespace trireme::fp16_layer_test
