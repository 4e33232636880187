// An encoder layer's token-wise halves against the same formulas written out under autograd in fp64, and
// against themselves: in tiles, with what was kept, in 16 bits.
#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "trireme/kernels/token_tiles.h"
#include "trireme/model/layer.h"
#include "trireme/model/model_family.h"

#include "tests/support/relative_error.h"
#include "tests/support/unit_parameters.h"

namespace trireme::encoder_layer_test {
namespace {

using testing::relative_error;

constexpr int64_t kM = 64, kH = 4, kD = 16, kI = 96, kN = 3 * kH, kT = 40;
constexpr double kEps = 1e-5;

at::Tensor random(at::IntArrayRef shape, double spread, double center, uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  // Exact in every dtype.
  return (at::randn(shape, generator, at::kFloat) * spread + center).to(at::kBFloat16).to(at::kDouble);
}

ModelConfig config() {
  return parse_model_config({{"model_type", "bert"},
                             {"hidden_size", kM},
                             {"intermediate_size", kI},
                             {"num_attention_heads", kH},
                             {"num_hidden_layers", 1},
                             {"layer_norm_eps", kEps}},
                            "test");
}

// The parameters of the layer, or their gradients, by their names without this.
const std::string kPrefix = "bert.encoder.layer.0.";
using Named = std::map<std::string, at::Tensor>;
Named named(const at::Tensor& flat) {
  static const ModelLayout layout = make_model_layout(config());
  return testing::parameters_of(layout.units[1], flat, kPrefix);
}

// Matrices, biases and norms of sizes that let each show in the results.
at::Tensor random_flat(const UnitSpec& unit) {
  at::Tensor flat = at::zeros({unit.elements}, at::kDouble);
  uint64_t seed = 0;
  for (const auto& [name, view] : named(flat)) {
    const bool norm = name.ends_with("LayerNorm.weight");
    view.copy_(random(view.sizes(), view.dim() == 2 ? 0.2 : norm ? 0.3 : 0.5, norm ? 1 : 0, ++seed));
  }
  return flat;
}

struct Inputs {
  at::Tensor x = random({kT, kM}, 1, 0, 20), o = random({kT, kM}, 1, 0, 21);
  at::Tensor dqkv = random({kT, kN, kD}, 1, 0, 22), dy = random({kT, kM}, 1, 0, 23);
};

// Named results, in one order for all ways to them.
using Results = std::vector<std::pair<std::string, at::Tensor>>;

// Statistics in fp32 at least, as Hugging Face's modules do.
at::Tensor written_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const auto dtype = x.scalar_type();
  const at::Tensor wide = dtype == at::kDouble ? x : x.to(at::kFloat);
  const at::Tensor centered = wide - wide.mean(-1, true);
  const at::Tensor normed = centered / at::sqrt(centered.square().mean(-1, true) + kEps);
  return (normed * weight.to(wide.scalar_type()) + bias.to(wide.scalar_type())).to(dtype);
}

at::Tensor written_gelu(const at::Tensor& x) {
  const at::Tensor wide = x.scalar_type() == at::kDouble ? x : x.to(at::kFloat);
  return (wide * 0.5 * (1 + at::erf(wide * M_SQRT1_2))).to(x.scalar_type());
}

Results autograd_layer(const Inputs& in, at::ScalarType dtype) {
  const UnitSpec unit = make_model_layout(config()).units[1];
  Named w;
  for (const auto& [name, view] : named(random_flat(unit).to(dtype)))
    w[name] = view.clone().requires_grad_(true);
  const at::Tensor x = in.x.to(dtype, false, true).requires_grad_(true),
                   o = in.o.to(dtype, false, true).requires_grad_(true);
  const auto projected = [&](const at::Tensor& from, const std::string& name) {
    return at::matmul(from, w.at(name + ".weight").t()) + w.at(name + ".bias");
  };
  const auto normed = [&](const at::Tensor& from, const std::string& name) {
    return written_norm(from, w.at(name + ".weight"), w.at(name + ".bias"));
  };
  const at::Tensor qkv = at::cat({projected(x, "attention.self.query"), projected(x, "attention.self.key"),
                                  projected(x, "attention.self.value")},
                                 1)
                             .view({kT, kN, kD});
  const at::Tensor a = normed(projected(o, "attention.output.dense") + x, "attention.output.LayerNorm");
  const at::Tensor act = written_gelu(projected(a, "intermediate.dense"));
  const at::Tensor y = normed(projected(act, "output.dense") + a, "output.LayerNorm");
  y.backward(in.dy.to(dtype), /*retain_graph=*/true);
  qkv.backward(in.dqkv.to(dtype));
  Results results = {{"qkv", qkv.detach()}, {"y", y.detach()}, {"dx", x.grad()}, {"do", o.grad()}};
  for (const auto& [name, leaf] : w) results.emplace_back(name, leaf.grad());
  return results;
}

struct LayerRun {
  at::ScalarType storage = at::kDouble, tile = at::kDouble;
  int64_t tile_tokens = kT;
  bool kept = false;
};

Results layer_in_tiles(const Inputs& in, const LayerRun& run) {
  const ModelConfig config = encoder_layer_test::config();
  const UnitSpec unit = make_model_layout(config).units[1];
  const auto arithmetic = config.family->layer(config);
  const LayerTensors layer{bind_weights(random_flat(unit).to(run.tile), unit), {}};
  const auto sum_dtype = run.tile == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor sums = at::full({unit.elements}, std::nan(""), sum_dtype);
  UnitGradients gradients(sums, unit, SumState::undefined);
  const auto stored = [&](const at::Tensor& x) { return x.to(run.storage, false, true); };
  const at::Tensor x = stored(in.x), o = stored(in.o), dqkv = stored(in.dqkv), d = stored(in.dy);
  const at::Tensor qkv = at::empty({kT, kN, kD}, run.storage), y = at::empty({kT, kM}, run.storage);
  const at::Tensor d_o = at::empty({kT, kM}, run.storage);
  const at::Tensor x1 = at::empty({kT, kM}, run.tile), mlp = at::empty({kT, config.mlp_kept_width}, run.tile);
  const auto kept_rows = [&](int64_t begin, int64_t count) {
    return KeptAfterAttention{x1.narrow(0, begin, count), mlp.narrow(0, begin, count)};
  };
  for_tiles(kT, run.tile_tokens, [&](int64_t begin, int64_t count) {
    KeptAfterAttention kept = kept_rows(begin, count);
    arithmetic->before_attention_forward(layer, x.narrow(0, begin, count), begin, qkv.narrow(0, begin, count),
                                         {});
    arithmetic->after_attention_forward(layer, x.narrow(0, begin, count), begin, o.narrow(0, begin, count),
                                        {}, y.narrow(0, begin, count), run.kept ? &kept : nullptr);
  });
  for_tiles(kT, run.tile_tokens, [&](int64_t begin, int64_t count) {
    KeptAfterAttention kept = kept_rows(begin, count);
    const at::Tensor rows = d.narrow(0, begin, count);
    arithmetic->after_attention_backward(layer, gradients, x.narrow(0, begin, count), begin,
                                         o.narrow(0, begin, count), {}, rows, run.kept ? &kept : nullptr,
                                         d_o.narrow(0, begin, count));
    arithmetic->before_attention_backward(layer, gradients, x.narrow(0, begin, count), begin,
                                          dqkv.narrow(0, begin, count), {}, rows);
  });
  Results results = {{"qkv", qkv}, {"y", y}, {"dx", d}, {"do", d_o}};
  for (const auto& [name, view] : named(sums)) results.emplace_back(name, view);
  return results;
}

TEST(EncoderLayer, both_ways_equal_autograd_through_the_written_formulas) {
  const Inputs in;
  const Results truth = autograd_layer(in, at::kDouble), got = layer_in_tiles(in, {});
  ASSERT_EQ(got.size(), truth.size());
  for (size_t at = 0; at < got.size(); ++at) {
    ASSERT_EQ(got[at].first, truth[at].first);
    EXPECT_GT(truth[at].second.abs().max().item<double>(), 1e-2) << got[at].first;
    EXPECT_LT(relative_error(got[at].second, truth[at].second), 1e-11) << got[at].first;
  }
}

TEST(EncoderLayer, tiles_equal_the_whole) {
  const Inputs in;
  const Results whole = layer_in_tiles(in, {});
  for (const int64_t tile_tokens : {1, 7, 16}) {
    const Results tiled = layer_in_tiles(in, {.tile_tokens = tile_tokens});
    for (size_t at = 0; at < whole.size(); ++at)
      EXPECT_LT(relative_error(tiled[at].second, whole[at].second), 1e-12)
          << whole[at].first << " in tiles of " << tile_tokens;
  }
}

TEST(EncoderLayer, what_was_kept_gives_the_bits_of_what_is_made_again) {
  const Inputs in;
  using Dtypes = std::pair<at::ScalarType, at::ScalarType>;
  for (const auto& [storage, tile] : {Dtypes{at::kFloat, at::kFloat}, Dtypes{at::kBFloat16, at::kBFloat16},
                                      Dtypes{at::kBFloat16, at::kFloat}})
    for (const int64_t tile_tokens : {kT, int64_t{9}}) {
      LayerRun run{storage, tile, tile_tokens, false};
      const Results again = layer_in_tiles(in, run);
      run.kept = true;
      const Results kept = layer_in_tiles(in, run);
      for (size_t at = 0; at < again.size(); ++at)
        EXPECT_TRUE(at::equal(kept[at].second, again[at].second))
            << again[at].first << " stored in " << storage << ", multiplied in " << tile;
    }
}

// The law of low precision: at most twice the error of the plain formulas in the same dtype.
TEST(EncoderLayer, errors_in_16_bits_are_at_most_twice_those_of_the_plain_formulas) {
  const Inputs in;
  const Results truth = autograd_layer(in, at::kDouble);
  using Case = std::pair<at::ScalarType, double>;  // and half a last place
  for (const auto& [storage, least] : {Case{at::kBFloat16, 4e-3}, Case{at::kHalf, 5e-4}}) {
    const Results plain = autograd_layer(in, storage);
    for (const at::ScalarType tile : {at::kFloat, storage}) {
      const Results got = layer_in_tiles(in, {.storage = storage, .tile = tile, .tile_tokens = 16});
      for (size_t at = 0; at < got.size(); ++at)
        EXPECT_LE(relative_error(got[at].second, truth[at].second),
                  std::max(2 * relative_error(plain[at].second, truth[at].second), least))
            << got[at].first << " stored in " << storage << ", multiplied in " << tile;
    }
  }
}

}  // namespace
}  // namespace trireme::encoder_layer_test
