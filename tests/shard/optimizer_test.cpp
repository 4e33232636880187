// AdamW with bf16 moments against AdamW with fp32 ones, over so many steps that an error of either kind
// shows: moments that are not kept, decay left out, rounding that leans to one side or repeats its bits.
#include "trireme/shard/optimizer.h"

#include <cmath>

#include <gtest/gtest.h>

#include "trireme/kernels/split_master.h"
#include "trireme/shard/optimizer_bytes.h"

namespace trireme::optimizer_test {
namespace {

constexpr int64_t kElements = 1 << 15;  // half of them decay
constexpr double kRate = 0.01, kDecay = 0.5;
constexpr int kSteps = 20;

struct Trained {
  at::Tensor master, mean, square;
};

// Every element has the gradient of its step, so that the moments of all are samples of one number.
Trained train(at::ScalarType state_dtype, uint64_t seed) {
  const std::vector<FlatUnit> units{
      {"unit", kElements, {{0, kElements / 2, true}, {kElements / 2, kElements / 2, false}}}};
  const OptimizerKind& adamw = find_optimizer("adamw_torch");
  const auto optimizer =
      adamw.make(adamw, units, {.weight_decay = kDecay, .state_dtype = state_dtype, .seed = seed});
  Trained result;
  result.master = at::ones({kElements});
  for (int step = 1; step <= kSteps; ++step) {
    at::Tensor gradient = at::full({kElements}, 1 + 0.5 * std::sin(3 * step));
    optimizer->step(0, {result.master, {}, {}}, gradient, {kRate, 1, step});
  }
  result.mean = optimizer->state(0, "exp_avg").clone();
  result.square = optimizer->state(0, "exp_avg_sq").clone();
  return result;
}

double mean_of(const at::Tensor& values) {
  return values.to(at::kDouble).mean().item<double>();
}

TEST(AdamwWithNarrowMoments, has_the_moments_of_fp32_on_average_and_independent_rounding_in_every_step) {
  const Trained wide = train(at::kFloat, 0), narrow = train(at::kBFloat16, 1);
  for (const auto& [narrow_moment, wide_moment] :
       {std::pair{narrow.mean, wide.mean}, {narrow.square, wide.square}}) {
    const double expected = mean_of(wide_moment);
    ASSERT_GT(expected, 0);
    const double unit = std::ldexp(1.0, std::ilogb(expected) - 7);  // between two values of bf16
    const at::Tensor errors = (narrow_moment.to(at::kDouble) - expected) / unit;
    const double spread = errors.std().item<double>();
    EXPECT_LT(std::abs(mean_of(errors)), 5 * spread / std::sqrt(kElements));
    // Independent errors of 0.4 units a step, the earlier ones faded, come to 0.8 to 1.3. The same bits in
    // each step add up to more than 2; rounding to nearest has no spread.
    EXPECT_GT(spread, 0.5);
    EXPECT_LT(spread, 1.7);
  }
}

TEST(AdamwWithNarrowMoments, moves_the_masters_as_fp32_does_with_and_without_decay) {
  const Trained wide = train(at::kFloat, 0), narrow = train(at::kBFloat16, 1);
  const auto half = [](const at::Tensor& values, int which) {
    return values.narrow(0, which * kElements / 2, kElements / 2);
  };
  for (const int which : {0, 1}) {
    const at::Tensor expected = half(wide.master, which), got = half(narrow.master, which);
    EXPECT_NEAR(mean_of(got), mean_of(expected), 1e-4);
    EXPECT_LT((got - expected).abs().max().item<double>(), 0.01 * kRate * kSteps);
  }
  EXPECT_LT(mean_of(half(narrow.master, 0)), mean_of(half(narrow.master, 1)) - 0.05);
}

TEST(AdamwWithNarrowMoments, rounds_by_its_seed) {
  const Trained one = train(at::kBFloat16, 1), again = train(at::kBFloat16, 1),
                other = train(at::kBFloat16, 2);
  EXPECT_TRUE(at::equal(one.mean, again.mean) && at::equal(one.square, again.square));
  EXPECT_GT(mean_of(one.mean.ne(other.mean)), 0.2);
  EXPECT_GT(mean_of(one.square.ne(other.square)), 0.2);
}

// Longer than a piece of a step, with a parameter of an odd size that a piece cuts.
constexpr int64_t kLong = 3 * step_piece_elements(/*on_host=*/true) / 2 + 48;

std::vector<FlatUnit> long_unit() {
  const int64_t first = step_piece_elements(/*on_host=*/true) - 5;
  return {{"unit",
           kLong,
           {{0, first, true, "weight", {first}}, {first, kLong - first, false, "bias", {kLong - first}}}}};
}

at::Tensor nearest(const at::Tensor& masters, at::ScalarType dtype) {
  at::Tensor values = at::empty(masters.sizes(), dtype);
  round_masters(masters, values);
  return values;
}

TEST(Optimizer, of_every_kind_rounds_the_stepped_masters_into_the_values_that_compute_reads) {
  for (const OptimizerKind* kind : optimizers())
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
      const auto optimizer = kind->make(*kind, long_unit(), {});
      const at::Tensor master = at::randn({kLong}), values = at::zeros({kLong}, dtype);
      const at::Tensor before = master.clone();
      optimizer->step(0, {master, {}, values}, at::randn({kLong}), {kRate, 1, 1});
      EXPECT_GT(mean_of(master.ne(before)), 0.9) << kind->name;
      EXPECT_TRUE(at::equal(values, nearest(master, dtype))) << kind->name;
    }
}

TEST(Optimizer, of_every_kind_steps_split_masters_to_the_bits_of_fp32_ones) {
  for (const OptimizerKind* kind : optimizers())
    for (const at::ScalarType states : {at::kFloat, at::kBFloat16}) {
      if (states == at::kBFloat16 && !kind->bf16_states) continue;
      SCOPED_TRACE(kind->name);
      const auto make = [&] { return kind->make(*kind, long_unit(), {.state_dtype = states}); };
      const auto of_whole = make(), of_split = make();
      const at::Tensor master = at::randn({kLong});
      const MasterShare whole{master.clone(), {}, at::zeros({kLong}, at::kBFloat16)};
      const MasterShare split{{}, at::zeros({kLong}, at::kShort), at::zeros({kLong}, at::kBFloat16)};
      split.set(master);
      for (int step = 1; step <= 2; ++step) {
        const at::Tensor gradient = at::randn({kLong});
        of_whole->step(0, whole, gradient.clone(), {kRate, 0.5, step});
        of_split->step(0, split, gradient.clone(), {kRate, 0.5, step});
      }
      EXPECT_GT(mean_of(whole.whole.ne(master)), 0.9);
      EXPECT_TRUE(at::equal(split.fp32(), whole.whole));
      EXPECT_TRUE(at::equal(split.values, whole.values));
      for (const std::string& name : kind->state_names)
        EXPECT_TRUE(at::equal(of_split->state(0, name), of_whole->state(0, name))) << name;
    }
}

}  // namespace
}  // namespace trireme::optimizer_test
