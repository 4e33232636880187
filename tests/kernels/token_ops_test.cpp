// The CPU's fused loops against the ATen versions, and the ATen versions' gradients against central
// differences in fp64.
#include "trireme/kernels/token_ops.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <tuple>

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"

#include "tests/kernels/rotary_oracle.h"

namespace trireme {
namespace {

double worst(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.to(at::kDouble), y = b.to(at::kDouble);
  return (x - y).abs().max().item<double>() / std::max(1e-12, y.abs().max().item<double>());
}

at::Tensor random(at::IntArrayRef shape, at::ScalarType dtype, uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn(shape, generator, at::kFloat).to(dtype);
}

// What one run mixes: fp32 and a 16-bit type.
const std::array<std::array<at::ScalarType, 2>, 2> kMixes = {
    {{at::kFloat, at::kBFloat16}, {at::kFloat, at::kHalf}}};
// One step of the type's last place.
double tolerance(at::ScalarType dtype) {
  return dtype == at::kBFloat16 ? 8e-3 : dtype == at::kHalf ? 1e-3 : 2e-6;
}

TEST(TokenOps, fused_rms_norm_equals_atens) {
  for (const auto& dtypes : kMixes)
    for (const auto in : dtypes)
      for (const auto out : dtypes) {
        const at::Tensor x = random({7, 48}, in, 1), w = random({48}, at::kFloat, 2);
        EXPECT_LT(worst(rms_norm(x, w, 1e-5, out), aten::rms_norm(x, w, 1e-5, out)), tolerance(out));
      }
}

TEST(TokenOps, fused_rms_norm_backward_equals_atens_and_adds) {
  for (const auto& dtypes : kMixes)
    for (const auto d : dtypes)
      for (const auto in : dtypes)
        for (const auto out : dtypes) {
          const at::Tensor dy = random({37, 40}, d, 3), x = random({37, 40}, in, 4),
                           w = random({40}, at::kFloat, 5);
          at::Tensor dx = random({37, 40}, out, 6), dw = random({40}, at::kFloat, 7);
          at::Tensor dx2 = dx.clone(), dw2 = dw.clone();
          rms_norm_backward(dy, x, w, 1e-5, dx, dw);
          aten::rms_norm_backward(dy, x, w, 1e-5, dx2, dw2);
          EXPECT_LT(worst(dx, dx2), tolerance(out));
          EXPECT_LT(worst(dw, dw2), 1e-5);
        }
}

RotaryHeads rotary_heads(int64_t H, int64_t K, int64_t D, bool norms, int64_t turning_pairs = 0) {
  RotaryHeads rotary;
  rotary.turning_pairs = turning_pairs;
  rotary.query_heads = H;
  rotary.rotated_heads = H + K;
  const at::Tensor angle = random({5, turning_pairs > 0 ? turning_pairs : D / 2}, at::kFloat, 8);
  rotary.cos = at::cos(angle);
  rotary.sin = at::sin(angle);
  rotary.first_row = 3;
  rotary.norm_eps = 1e-5;
  if (norms) {
    rotary.q_norm = random({D}, at::kFloat, 9);
    rotary.k_norm = random({D}, at::kFloat, 10);
  }
  return rotary;
}

TEST(TokenOps, fused_rotary_equals_atens_both_ways_with_and_without_norms) {
  constexpr int64_t H = 4, K = 2, D = 6, N = H + 2 * K, T = 11;
  for (const bool norms : {false, true})
    for (const auto& dtypes : kMixes)
      for (const auto in : dtypes)
        for (const auto out : dtypes) {
          const RotaryHeads rotary = rotary_heads(H, K, D, norms);
          const at::Tensor x = random({T, N, D}, in, 11);
          const at::Tensor y = at::empty({T, N, D}, out), y2 = at::empty({T, N, D}, out);
          rotate_heads(x, rotary, y);
          aten::rotate_heads(x, rotary, y2);
          EXPECT_LT(worst(y, y2), tolerance(out));

          const at::Tensor before = random({T, H + K, D}, out, 12);
          at::Tensor dq = at::zeros({D}), dk = at::zeros({D}), dq2 = at::zeros({D}), dk2 = at::zeros({D});
          rotate_heads_backward(x, rotary, before, y, dq, dk);
          aten::rotate_heads_backward(x, rotary, before, y2, dq2, dk2);
          EXPECT_LT(worst(y, y2), tolerance(out));
          EXPECT_LT(worst(dq, dq2), 1e-5);
          EXPECT_LT(worst(dk, dk2), 1e-5);
        }
}

struct RotaryCode {
  const char* name;
  decltype(&rotate_heads) forward;
  decltype(&rotate_heads_backward) backward;
};
constexpr std::array<RotaryCode, 2> kRotaryCodes = {{
    {"loops", &rotate_heads, &rotate_heads_backward},
    {"ATen", &aten::rotate_heads, &aten::rotate_heads_backward},
}};

// As the layers of Gemma multiply; of loops and of ATen.
TEST(TokenOps, norms_that_add_1_give_the_bits_of_fp32_weights_with_1_in_them) {
  constexpr double kEps = 1e-5;
  const at::Tensor x = random({7, 48}, at::kBFloat16, 1), dy = random({7, 48}, at::kBFloat16, 2),
                   w = random({48}, at::kBFloat16, 3), added = w.to(at::kFloat) + 1;
  for (const auto& [forward, backward] :
       {std::pair(&rms_norm, &rms_norm_backward), std::pair(&aten::rms_norm, &aten::rms_norm_backward)}) {
    EXPECT_TRUE(
        at::equal(forward(x, w, kEps, at::kBFloat16, true), forward(x, added, kEps, at::kBFloat16, false)));
    at::Tensor dx = random({7, 48}, at::kFloat, 4), dw = at::zeros({48}), dx2 = dx.clone(), dw2 = dw.clone();
    backward(dy, x, w, kEps, dx, dw, true);
    backward(dy, x, added, kEps, dx2, dw2, false);
    EXPECT_TRUE(at::equal(dx, dx2) && at::equal(dw, dw2));
  }
  RotaryHeads rotary = rotary_heads(4, 2, 6, true);
  RotaryHeads without = rotary;
  rotary.norms_add_one = true;
  for (at::Tensor RotaryHeads::*const norm : {&RotaryHeads::q_norm, &RotaryHeads::k_norm}) {
    rotary.*norm = (rotary.*norm).to(at::kBFloat16);
    without.*norm = (rotary.*norm).to(at::kFloat) + 1;
  }
  const at::Tensor heads = random({11, 8, 6}, at::kBFloat16, 11), before = random({11, 6, 6}, at::kFloat, 12);
  for (const RotaryCode& code : kRotaryCodes) {
    const auto run = [&](const RotaryHeads& given) {
      const at::Tensor y = at::empty({11, 8, 6}), dx = at::empty({11, 8, 6});
      at::Tensor dq = at::zeros({6}), dk = at::zeros({6});
      code.forward(heads, given, y);
      code.backward(heads, given, before, dx, dq, dk);
      return at::cat({y.flatten(), dx.flatten(), dq, dk});
    };
    EXPECT_TRUE(at::equal(run(rotary), run(without))) << code.name;
  }
}

std::vector<double> values(const at::Tensor& x) {
  const at::Tensor wide = x.to(at::kDouble).contiguous();
  return {wide.const_data_ptr<double>(), wide.const_data_ptr<double>() + wide.numel()};
}

// What the oracle makes of heads [T, N, D]: backward with `before`, forward without.
struct Rotated {
  at::Tensor to;
  std::vector<double> dq, dk;  // [D]
};
Rotated rotated(const at::Tensor& from_TND, const RotaryHeads& rotary, const at::Tensor& before_TND = {}) {
  const int64_t T = from_TND.size(0), D = from_TND.size(2);
  const std::vector<double> none(static_cast<size_t>(D), 0);
  Rotated made{from_TND.to(at::kDouble, false, true), none, none};
  for (int64_t t = 0; t < T; ++t)
    for (int64_t head = 0; head < rotary.rotated_heads; ++head) {
      const bool query = head < rotary.query_heads;
      const int64_t row = (rotary.first_row + t) % rotary.cos.size(0);
      const at::Tensor& norm = query ? rotary.q_norm : rotary.k_norm;
      const testing::RotaryOracle oracle(values(rotary.cos[row]), values(rotary.sin[row]),
                                         norm.defined() ? values(norm) : std::vector<double>(),
                                         rotary.norm_eps);
      const std::vector<double> x = values(from_TND[t][head]);
      made.to[t][head].copy_(at::tensor(
          before_TND.defined() ? oracle.backward(x, values(before_TND[t][head]), query ? made.dq : made.dk)
                               : oracle.forward(x),
          at::kDouble));
    }
  return made;
}

void rotation_equals_the_oracle(int64_t D, int64_t r, bool norms, at::ScalarType in, at::ScalarType out) {
  constexpr int64_t H = 2, K = 1, N = H + 2 * K, T = 6;
  const auto sums = in == at::kDouble ? at::kDouble : at::kFloat;
  const RotaryHeads rotary = rotary_heads(H, K, D, norms, r);
  const at::Tensor x = random({T, N, D}, in, 11), before = random({T, H + K, D}, out, 12);
  const Rotated expected = rotated(x, rotary), gradient = rotated(x, rotary, before);
  const double bound = in == at::kDouble ? 1e-12 : tolerance(out), sums_bound = std::min(bound, 1e-5);
  for (const RotaryCode& code : kRotaryCodes) {
    SCOPED_TRACE(code.name);
    const at::Tensor y = at::empty({T, N, D}, out), dx = at::empty({T, N, D}, out);
    code.forward(x, rotary, y);
    EXPECT_LT(worst(y, expected.to), bound);
    at::Tensor dq = at::zeros({D}, sums), dk = at::zeros({D}, sums);
    code.backward(x, rotary, before, dx, dq, dk);
    EXPECT_LT(worst(dx, gradient.to), bound);
    if (norms) {
      EXPECT_LT(worst(dq, at::tensor(gradient.dq, at::kDouble)), sums_bound);
      EXPECT_LT(worst(dk, at::tensor(gradient.dk, at::kDouble)), sums_bound);
    }
    if (in != out) continue;
    const at::Tensor here = x.clone(), dhere = x.clone();
    code.forward(here, rotary, here);
    EXPECT_TRUE(at::equal(here, y));
    code.backward(dhere, rotary, before, dhere, dq, dk);
    EXPECT_TRUE(at::equal(dhere, dx));
  }
}

TEST(TokenOps, rotary_of_a_part_of_each_head_equals_fp64_both_ways_in_place_too) {
  using Mix = std::array<at::ScalarType, 2>;
  for (const int64_t D : {8, 64, 96, 256})
    for (const int64_t r : {int64_t{1}, int64_t{3}, D / 8, D / 2})
      for (const bool norms : {false, true})
        for (const auto& [in, out] : {Mix{at::kFloat, at::kFloat}, Mix{at::kBFloat16, at::kBFloat16},
                                      Mix{at::kHalf, at::kHalf}, Mix{at::kFloat, at::kBFloat16},
                                      Mix{at::kBFloat16, at::kFloat}, Mix{at::kDouble, at::kDouble}}) {
          SCOPED_TRACE(::testing::Message() << r << " pairs of heads of " << D << (norms ? ", norms, " : ", ")
                                            << in << " to " << out);
          rotation_equals_the_oracle(D, r, norms, in, out);
        }
}

TEST(TokenOps, rotary_tables_are_as_wide_as_pairs_turn) {
  RotaryHeads rotary = rotary_heads(2, 1, 8, false, 3);
  at::Tensor x = at::zeros({2, 4, 8}), dq, dk;
  rotary.turning_pairs = 0;
  EXPECT_THROW(rotate_heads(x, rotary, x), InternalError);
  EXPECT_THROW(rotate_heads_backward(x, rotary, {}, x, dq, dk), InternalError);
  rotary = rotary_heads(2, 1, 8, false, 5);
  EXPECT_THROW(rotate_heads(x, rotary, x), InternalError) << "more pairs than a head has";
}

TEST(TokenOps, fused_gated_units_equal_atens_both_ways) {
  for (const GluGate gate : {GluGate::silu, GluGate::gelu_tanh})
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const at::Tensor gate_up = random({13, 2 * 33}, dtype, 14) * 4, dact = random({13, 33}, dtype, 15);
      EXPECT_LT(worst(glu(gate, gate_up), aten::glu(gate, gate_up)), tolerance(dtype));
      at::Tensor a = gate_up.clone(), b = gate_up.clone();
      const at::Tensor act = glu_backward(gate, dact, a), act2 = aten::glu_backward(gate, dact, b);
      EXPECT_LT(worst(a, b), tolerance(dtype));
      EXPECT_LT(worst(act, act2), tolerance(dtype));
    }
}

TEST(TokenOps, gated_units_survive_extreme_gates) {
  for (const GluGate gate : {GluGate::silu, GluGate::gelu_tanh}) {
    at::Tensor gate_up =
        at::tensor({-200.0f, -90.0f, 0.0f, 90.0f, 200.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f}).view({1, 10});
    at::Tensor expected = gate_up.clone();
    const at::Tensor act = glu(gate, gate_up);
    EXPECT_TRUE(at::isfinite(act).all().item<bool>());
    EXPECT_LT(worst(act, aten::glu(gate, gate_up)), 1e-6);
    glu_backward(gate, at::ones({1, 5}), gate_up);
    aten::glu_backward(gate, at::ones({1, 5}), expected);
    EXPECT_LT(worst(gate_up, expected), 1e-6);
  }
}

TEST(TokenOps, fused_cross_entropy_equals_atens_with_ignored_targets) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor logits = random({6, 3001}, dtype, 16) * 8;
    const at::Tensor targets = at::tensor({5, -100, 3000, 0, -100, 17}, at::kLong);
    at::Tensor a = logits.clone(), b = logits.clone(), loss = at::empty({6}), loss2 = at::empty({6});
    cross_entropy(a, targets, loss, 0.25);
    aten::cross_entropy(b, targets, loss2, 0.25);
    EXPECT_LT(worst(loss, loss2), 1e-5);
    EXPECT_LT(worst(a, b), tolerance(dtype) * 4);
    EXPECT_EQ(loss[1].item<float>(), 0);
    EXPECT_EQ(a[1].abs().max().item<float>(), 0);
  }
}

// Of x [T, V] fp64, by autograd through the cap.
struct CappedLoss {
  at::Tensor loss, dcapped, dx;
  CappedLoss(const at::Tensor& values, const at::Tensor& targets, double scale, double cap) {
    const at::Tensor x = values.clone().requires_grad_(true), capped = cap * at::tanh(x / cap);
    capped.retain_grad();
    const at::Tensor picked =
        at::log_softmax(capped, 1).gather(1, targets.clamp_min(0).unsqueeze(1)).squeeze(1);
    loss = -picked * targets.ge(0);
    (loss.sum() * scale).backward();
    loss = loss.detach();
    dcapped = capped.grad();
    dx = x.grad();
  }
  // By how much an element of the gradient is further off than `rounding` of it, `part` of what the cap's
  // slope multiplies, and `least`.
  double excess(const at::Tensor& got, double rounding, double part, double least) const {
    const at::Tensor allowed = dx.abs() * rounding + dcapped.abs() * part + least;
    const at::Tensor excess = (got.to(at::kDouble) - dx).abs() - allowed;
    return at::isfinite(got).all().item<bool>() ? excess.max().item<double>() : INFINITY;
  }
};

// Most of them near the cap, of which some of 16 bits are the cap itself.
at::Tensor large_logits(int64_t V, double cap, at::ScalarType dtype) {
  at::Tensor x = random({6, V}, at::kDouble, 31) * (cap * 1.2);
  x[0][5] = cap * 100;  // the target
  return x.to(dtype);
}
const at::Tensor& capped_targets() {
  static const at::Tensor targets = at::tensor({5, -100, 300, 0, -100, 17}, at::kLong);
  return targets;
}

TEST(TokenOps, the_gradient_of_capped_logits_is_that_of_what_was_capped) {
  constexpr double kScale = 0.25;
  const at::Tensor& targets = capped_targets();
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf})
    for (const double cap : {30.0, 2.0})
      for (const int64_t V : {301, 1031}) {
        SCOPED_TRACE(::testing::Message() << dtype << ", cap " << cap << ", V " << V);
        const at::Tensor x = large_logits(V, cap, dtype);
        at::Tensor capped = x.clone();
        cap_logits(capped, cap);
        EXPECT_LT(worst(capped, cap * at::tanh(x.to(at::kDouble) / cap)), tolerance(dtype) * 2);
        const CappedLoss expected(cap * at::atanh(capped.to(at::kDouble) / cap), targets, kScale, cap);
        for (const auto& run : {&cross_entropy, &aten::cross_entropy}) {
          at::Tensor d = capped.clone(), loss = at::empty({6}), again = at::empty({6});
          run(d, targets, again, std::nullopt, cap);
          EXPECT_TRUE(at::equal(d, capped));
          run(d, targets, loss, kScale, cap);
          EXPECT_TRUE(at::equal(loss, again));
          EXPECT_LT(worst(loss, expected.loss), 1e-5);
          EXPECT_LE(expected.excess(d, tolerance(dtype), 2e-6, 1e-7), 0);
          EXPECT_EQ(d[1].abs().max().item<double>(), 0);
          EXPECT_EQ(d[0][5].item<double>(), 0) << "so far beyond the cap nothing moves it";
        }
      }
}

TEST(TokenOps, a_cap_and_the_loss_of_what_it_leaves_equal_autograd_of_both) {
  for (const auto& [dtype, part, least] : {std::tuple{at::kDouble, 1e-12, 1e-15}, {at::kFloat, 1e-5, 1e-7}})
    for (const double cap : {30.0, 2.0}) {
      const at::Tensor x = large_logits(301, cap, dtype);
      const CappedLoss expected(x.to(at::kDouble), capped_targets(), 0.5, cap);
      at::Tensor d = x.clone(), loss = at::empty({6}, dtype);
      cap_logits(d, cap);
      cross_entropy(d, capped_targets(), loss, 0.5, cap);
      EXPECT_LT(worst(loss, expected.loss), part);
      EXPECT_LE(expected.excess(d, 0, part, least), 0);
    }
}

TEST(TokenOps, what_fp16_cannot_hold_is_infinite_and_then_not_a_number) {
  at::Tensor gate_up = at::full({1, 2 * 40}, 300, at::kHalf);
  const at::Tensor act = glu(GluGate::silu, gate_up);  // 90000
  EXPECT_TRUE(act.isinf().all().item<bool>());
  EXPECT_TRUE(rms_norm(act, at::ones({40}), 1e-5, at::kFloat).isnan().all().item<bool>());
  EXPECT_TRUE(rms_norm(act, at::ones({40}), 1e-5, at::kHalf).isnan().all().item<bool>());
  const at::Tensor dact = glu_backward(GluGate::silu, at::full({1, 40}, -300, at::kHalf), gate_up);
  EXPECT_TRUE(dact.isinf().all().item<bool>());
  EXPECT_TRUE(gate_up.isinf().all().item<bool>() && gate_up.lt(0).all().item<bool>());
  at::Tensor logits = at::ones({1, 50}, at::kHalf), loss = at::empty({1});
  logits[0][7] = std::numeric_limits<double>::infinity();
  cross_entropy(logits, at::tensor({3}, at::kLong), loss, 1.0);
  EXPECT_FALSE(std::isfinite(loss.item<float>()));
}

TEST(TokenOps, gradients_too_small_for_normal_fp16_numbers_are_kept_as_denormals) {
  at::Tensor gate_up = at::ones({1, 2 * 40}, at::kHalf);
  glu_backward(GluGate::silu, at::full({1, 40}, 1e-6, at::kHalf), gate_up);
  const double expected = 1e-6 / (1 + std::exp(-1.0));  // d(up) = silu(1) d(act)
  EXPECT_NEAR(gate_up[0][79].item<double>(), expected, 0x1p-24);
  EXPECT_GT(gate_up[0][79].item<double>(), 0);
}

TEST(TokenOps, a_nan_among_the_logits_is_a_nan_loss) {
  at::Tensor logits = random({1, 100}, at::kFloat, 17), loss = at::empty({1});
  logits[0][50] = std::nan("");
  cross_entropy(logits, at::tensor({3}, at::kLong), loss, 1.0);
  EXPECT_TRUE(std::isnan(loss.item<float>()));
}

TEST(TokenOps, a_target_outside_of_the_vocabulary_is_a_nan_loss) {
  for (const double cap : {0.0, 30.0}) {
    at::Tensor logits = random({2, 100}, at::kFloat, 18), loss = at::empty({2});
    cross_entropy(logits, at::tensor(std::vector<int64_t>{100, int64_t{1} << 40}, at::kLong), loss, 1.0, cap);
    EXPECT_TRUE(loss.isnan().all().item<bool>());
  }
}

TEST(TokenOps, gelu_is_the_exact_form_and_its_backward_leaves_it_behind) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor x = random({13, 33}, dtype, 30) * 3, wide = x.to(at::kDouble);
    const at::Tensor cdf = (1 + at::erf(wide * M_SQRT1_2)) / 2;
    const at::Tensor density = at::exp(-wide.square() / 2) * (0.5 * M_SQRT1_2 * M_2_SQRTPI);
    EXPECT_LT(worst(exact_gelu(x), wide * cdf), tolerance(dtype));
    const at::Tensor dact = random({13, 33}, dtype, 31);
    at::Tensor dx = dact.clone(), act = x.clone();
    exact_gelu_backward(dx, act);
    EXPECT_LT(worst(dx, dact.to(at::kDouble) * (cdf + wide * density)), tolerance(dtype));
    EXPECT_TRUE(at::equal(act, exact_gelu(x)));
  }
}

TEST(TokenOps, layer_norm_takes_its_statistics_in_fp32_whatever_the_dtype) {
  for (const auto& dtypes : kMixes)
    for (const auto in : dtypes)
      for (const auto out : dtypes) {
        // A mean far from zero: 16-bit sums would lose the rest.
        const at::Tensor x = random({7, 48}, in, 32) + 20, w = random({48}, in, 33), b = random({48}, in, 34);
        const at::Tensor wide = x.to(at::kDouble), centered = wide - wide.mean(1, true);
        const at::Tensor rstd = at::rsqrt(centered.square().mean(1, true) + 1e-5);
        EXPECT_LT(worst(layer_norm(x, w, b, 1e-5, out), centered * rstd * w + b),
                  std::max(tolerance(out), 2e-5));

        const at::Tensor dy = random({7, 48}, out, 35), g = dy.to(at::kDouble) * w, hat = centered * rstd;
        at::Tensor dw = at::ones({48}), db = at::ones({48});
        const at::Tensor dx = layer_norm_backward(dy, x, w, 1e-5, out, dw, db);
        const at::Tensor expected = rstd * (g - g.mean(1, true) - hat * (g * hat).mean(1, true));
        EXPECT_LT(worst(dx, expected), std::max(tolerance(out), 2e-5));
        EXPECT_LT(worst(dw, 1 + (dy.to(at::kDouble) * hat).sum(0)), 2e-5);
        EXPECT_LT(worst(db, 1 + dy.to(at::kDouble).sum(0)), 2e-5);
      }
}

// d(sum(f(x) * weights)) / dx by central differences.
at::Tensor numeric_gradient(const std::function<at::Tensor(const at::Tensor&)>& f, const at::Tensor& x,
                            const at::Tensor& weights) {
  at::Tensor gradient = at::zeros_like(x), moved = x.clone();
  double* value = moved.data_ptr<double>();
  for (int64_t i = 0; i < x.numel(); ++i) {
    const double kept = value[i], step = 1e-5;
    value[i] = kept + step;
    const double above = (f(moved) * weights).sum().item<double>();
    value[i] = kept - step;
    const double below = (f(moved) * weights).sum().item<double>();
    value[i] = kept;
    gradient.view(-1)[i] = (above - below) / (2 * step);
  }
  return gradient;
}

TEST(TokenOps, gradients_equal_central_differences) {
  const at::Tensor x = random({3, 10}, at::kDouble, 20), w = random({10}, at::kDouble, 21);
  const at::Tensor dy = random({3, 10}, at::kDouble, 22);
  at::Tensor dx = at::zeros_like(x), dw = at::zeros_like(w);
  rms_norm_backward(dy, x, w, 1e-5, dx, dw);
  EXPECT_LT(worst(dx, numeric_gradient([&](const at::Tensor& v) { return rms_norm(v, w, 1e-5, at::kDouble); },
                                       x, dy)),
            1e-7);
  EXPECT_LT(worst(dw, numeric_gradient([&](const at::Tensor& v) { return rms_norm(x, v, 1e-5, at::kDouble); },
                                       w, dy)),
            1e-7);

  const at::Tensor gate_up = random({2, 12}, at::kDouble, 23), dact = random({2, 6}, at::kDouble, 24);
  for (const GluGate gate : {GluGate::silu, GluGate::gelu_tanh}) {
    at::Tensor d = gate_up.clone();
    glu_backward(gate, dact, d);
    EXPECT_LT(worst(d, numeric_gradient([&](const at::Tensor& v) { return glu(gate, v); }, gate_up, dact)),
              1e-7);
  }

  const at::Tensor b = random({10}, at::kDouble, 28);
  at::Tensor dw2 = at::zeros_like(w), db = at::zeros_like(b);
  const at::Tensor dx2 = layer_norm_backward(dy, x, w, 1e-5, at::kDouble, dw2, db);
  const auto norm = [&](const at::Tensor& v, const at::Tensor& weight, const at::Tensor& bias) {
    return layer_norm(v, weight, bias, 1e-5, at::kDouble);
  };
  EXPECT_LT(worst(dx2, numeric_gradient([&](const at::Tensor& v) { return norm(v, w, b); }, x, dy)), 1e-7);
  EXPECT_LT(worst(dw2, numeric_gradient([&](const at::Tensor& v) { return norm(x, v, b); }, w, dy)), 1e-7);
  EXPECT_LT(worst(db, numeric_gradient([&](const at::Tensor& v) { return norm(x, w, v); }, b, dy)), 1e-7);

  at::Tensor inner = x.clone(), dinner = dy.clone();
  exact_gelu_backward(dinner, inner);
  EXPECT_LT(worst(dinner, numeric_gradient([](const at::Tensor& v) { return exact_gelu(v); }, x, dy)), 1e-7);

  RotaryHeads rotary = rotary_heads(2, 1, 6, true);
  const at::Tensor heads = random({3, 4, 6}, at::kDouble, 25), dheads = random({3, 4, 6}, at::kDouble, 26);
  const auto forward = [&](const at::Tensor& v) {
    at::Tensor out = at::empty_like(v);
    rotate_heads(v, rotary, out);
    return out;
  };
  at::Tensor back = at::empty_like(heads), dq = at::zeros({6}, at::kDouble), dk = at::zeros({6}, at::kDouble);
  rotate_heads_backward(dheads, rotary, heads, back, dq, dk);
  // The tables are fp32, which central differences do not mind: both sides use the same ones.
  EXPECT_LT(worst(back, numeric_gradient(forward, heads, dheads)), 1e-6);

  const at::Tensor logits = random({3, 9}, at::kDouble, 27), targets = at::tensor({1, -100, 8}, at::kLong);
  at::Tensor dlogits = logits.clone(), loss = at::empty({3}, at::kDouble);
  cross_entropy(dlogits, targets, loss, 0.5);
  EXPECT_LT(worst(dlogits, numeric_gradient(
                               [&](const at::Tensor& v) {
                                 at::Tensor copy = v.clone(), out = at::empty({3}, at::kDouble);
                                 cross_entropy(copy, targets, out, std::nullopt);
                                 return out * 0.5;
                               },
                               logits, at::ones({3}, at::kDouble))),
            1e-7);
}

}  // namespace
}  // namespace trireme
