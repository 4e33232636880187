// Laws of stochastic rounding.
#include "trireme/shard/stochastic_rounding.h"

#include <cmath>
#include <limits>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/shard/rounding_kernel.h"

namespace trireme {
namespace {

at::Tensor rounded(const at::Tensor& x, uint64_t seed, uint64_t stream, int64_t first_element = 0) {
  at::Tensor y = at::empty(x.sizes(), x.options().dtype(at::kBFloat16));
  round_stochastically(x, y, seed, stream, first_element);
  return y;
}

// Values of all magnitudes, signs among them.
at::Tensor wide_range(int64_t count, uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const at::Tensor mantissa = at::randn({count}, generator, at::kFloat);
  const at::Tensor exponent = at::randint(-120, 120, {count}, generator, at::kFloat);
  return mantissa * at::exp2(exponent);
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return at::equal(a.view(at::kShort), b.view(at::kShort));
}

// The bf16 values next to x, x itself when it is one: from the text of the format, not from the code.
std::pair<float, float> neighbours(float x) {
  int exponent = 0;
  std::frexp(x, &exponent);
  const int last_place = std::max(exponent - 8, -133);  // 8 significant bits; denormals end at 2^-133
  const double unit = std::ldexp(1.0, last_place);
  return {static_cast<float>(std::floor(x / unit) * unit), static_cast<float>(std::ceil(x / unit) * unit)};
}

TEST(StochasticRounding, gives_one_of_the_two_neighbours_and_each_of_them) {
  const at::Tensor x = wide_range(500, 1);
  std::vector<int> lower(500), upper(500);
  for (uint64_t stream = 0; stream < 100; ++stream) {
    const at::Tensor y = rounded(x, 7, stream).to(at::kFloat);
    for (int64_t i = 0; i < x.numel(); ++i) {
      const auto [below, above] = neighbours(x.const_data_ptr<float>()[i]);
      const float got = y.const_data_ptr<float>()[i];
      ASSERT_TRUE(got == below || got == above)
          << x.const_data_ptr<float>()[i] << " became " << got << ", not " << below << " or " << above;
      ++(got == below ? lower : upper).at(static_cast<size_t>(i));
    }
  }
  int met_both = 0;
  for (size_t i = 0; i < lower.size(); ++i) met_both += lower[i] > 0 && upper[i] > 0 ? 1 : 0;
  EXPECT_GT(met_both, 450);  // the others lie within a few per cent of a neighbour
}

TEST(StochasticRounding, is_right_on_average) {
  constexpr int kStreams = 20000;
  // Eighths of the way from one bf16 value to the next, in both signs, at a power of two and elsewhere.
  at::Tensor x =
      at::cat({1 + at::arange(1, 8, at::kFloat) / 8 / 128, -3 - at::arange(1, 8, at::kFloat) / 8 / 64});
  x = at::cat({x, at::full({1}, 1 + 1.0 / 128 / 4096)});
  at::Tensor sum = at::zeros({x.numel()}, at::kDouble);
  for (uint64_t stream = 0; stream < kStreams; ++stream) sum += rounded(x, 3, stream);
  const at::Tensor mean = sum / kStreams;
  for (int64_t i = 0; i < x.numel(); ++i) {
    const double value = x[i].item<double>(), unit = std::abs(value) < 2 ? 1.0 / 128 : 1.0 / 64;
    const double part = (value - std::floor(value / unit) * unit) / unit;
    const double deviation = unit * std::sqrt(part * (1 - part) / kStreams);
    EXPECT_NEAR(mean[i].item<double>(), value, 4.5 * deviation) << value;
  }
}

TEST(StochasticRounding, small_updates_are_kept_on_average_where_rounding_to_nearest_loses_them) {
  at::Tensor state = at::ones({4000}, at::kBFloat16), nearest = at::ones({4000}, at::kBFloat16);
  for (uint64_t step = 0; step < 100; ++step) {
    round_stochastically(state.to(at::kFloat) + 1e-3, state, 11, step);
    nearest.copy_(nearest.to(at::kFloat) + 1e-3);
  }
  EXPECT_EQ(nearest.to(at::kFloat).mean().item<double>(), 1);
  EXPECT_NEAR(state.to(at::kFloat).mean().item<double>(), 1.1, 2e-3);
}

// Elements side by side, streams and seeds side by side: of values half way, half agree.
TEST(StochasticRounding, elements_streams_and_seeds_are_independent) {
  constexpr int64_t kCount = 40000;
  const at::Tensor x = at::full({kCount}, 1 + 1.0 / 256);
  const auto ups = [&](uint64_t seed, uint64_t stream) { return rounded(x, seed, stream).gt(1); };
  const auto agreement = [](const at::Tensor& a, const at::Tensor& b) {
    return a.eq(b).to(at::kDouble).mean().item<double>();
  };
  const at::Tensor some = ups(5, 9);
  for (const int64_t distance : {1, 2, 3, 4, 8, 256}) {
    const int64_t pairs = kCount - distance;
    EXPECT_NEAR(agreement(some.narrow(0, 0, pairs), some.narrow(0, distance, pairs)), 0.5, 0.012) << distance;
  }
  EXPECT_NEAR(agreement(some, ups(5, 10)), 0.5, 0.012);
  EXPECT_NEAR(agreement(some, ups(6, 9)), 0.5, 0.012);
  EXPECT_NEAR(agreement(some, ups(9, 5)), 0.5, 0.012);
  EXPECT_TRUE(same_bits(rounded(x, 5, 9), rounded(x, 5, 9)));
}

TEST(StochasticRounding, values_of_bf16_infinities_and_nan_stay) {
  const at::Tensor all = at::arange(65536, at::kInt).to(at::kShort).view(at::kBFloat16);
  for (uint64_t stream = 0; stream < 50; ++stream) {
    const at::Tensor y = rounded(all.to(at::kFloat), 1, stream);
    const at::Tensor nan = all.to(at::kFloat).isnan();
    EXPECT_TRUE(at::equal(y.to(at::kFloat).isnan(), nan));
    const at::Tensor numbers = nan.logical_not().nonzero().squeeze(1);
    EXPECT_TRUE(same_bits(y.index_select(0, numbers), all.index_select(0, numbers)));
  }
  // A NaN whose payload lies in the lower half alone.
  const at::Tensor odd = at::full({9}, 0x7f800001, at::kInt).view(at::kFloat);
  EXPECT_TRUE(rounded(odd, 1, 1).isnan().all().item<bool>());
}

TEST(StochasticRounding, finite_stays_finite) {
  const float most = std::numeric_limits<float>::max();
  for (uint64_t stream = 0; stream < 20; ++stream) {
    EXPECT_TRUE(rounded(at::full({64}, most), 1, stream).isfinite().all().item<bool>());
    EXPECT_TRUE(rounded(at::full({64}, -most), 1, stream).isfinite().all().item<bool>());
  }
}

TEST(StochasticRounding, shards_round_as_the_whole_does) {
  const at::Tensor x = wide_range(3001, 2), whole = rounded(x, 4, 6);
  for (const int64_t cut : {1, 2, 3, 4, 255, 256, 257, 1000, 3000}) {
    const at::Tensor first = rounded(x.narrow(0, 0, cut).clone(), 4, 6);
    const at::Tensor second = rounded(x.narrow(0, cut, x.numel() - cut).clone(), 4, 6, cut);
    EXPECT_TRUE(same_bits(at::cat({first, second}), whole)) << "cut at " << cut;
  }
}

TEST(StochasticRounding, threads_change_nothing) {
  const at::Tensor x = wide_range(400001, 3);
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor alone = rounded(x, 8, 2, 5);
  for (const int threads : {2, 3, 4}) {
    at::set_num_threads(threads);
    EXPECT_TRUE(same_bits(rounded(x, 8, 2, 5), alone)) << threads << " threads";
  }
  at::set_num_threads(before);
}

TEST(StochasticRounding, the_aten_version_gives_the_same_bits) {
  const int64_t far = (int64_t{1} << 40) + 3;
  const float infinity = std::numeric_limits<float>::infinity();
  const at::Tensor odd = at::tensor({infinity, -infinity, 0.0f, -0.0f, std::numeric_limits<float>::max(),
                                     -std::numeric_limits<float>::denorm_min(), std::nanf("")});
  for (const at::Tensor& x : {wide_range(5003, 4), odd, at::empty({0})})
    for (const int64_t first : {int64_t{0}, int64_t{1}, far}) {
      at::Tensor y = at::empty(x.sizes(), at::kBFloat16);
      aten::round_stochastically(x, y, 0xfedcba9876543210ULL, 12, first);
      EXPECT_TRUE(same_bits(y, rounded(x, 0xfedcba9876543210ULL, 12, first)));
    }
}

TEST(StochasticRounding, every_instruction_set_gives_the_same_bits) {
  std::vector kernels = {&simd_base::round_block};
  if (simd_level() != SimdLevel::base) kernels.push_back(&simd_v3::round_block);
  if (simd_level() == SimdLevel::v4) kernels.push_back(&simd_v4::round_block);
  const at::Tensor x = wide_range(2001, 5);
  const auto* bits = static_cast<const uint32_t*>(x.const_data_ptr());
  for (const int64_t count : {1, 7, 256, 2001}) {
    std::vector<std::vector<uint16_t>> results;
    for (const auto kernel : kernels) {
      results.emplace_back(static_cast<size_t>(count));
      kernel(bits, results.back().data(), count, 99, 6);
      EXPECT_EQ(results.back(), results.front());
    }
  }
}

// The header's formula for one element, so that states saved by one version are rounded alike by the next.
TEST(StochasticRounding, random_numbers_are_those_of_the_formula) {
  const auto mix = [](uint64_t x) {
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9ULL;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
  };
  constexpr uint64_t kStep = 0x9e3779b97f4a7c15ULL, kSeed = 42, kStream = 77;
  const uint64_t key = mix((mix(kSeed + kStep) ^ kStream) + kStep);
  const at::Tensor x = at::full({23}, 1 + 1.0 / 256);  // half way: up when the number is 2^15 or more
  const at::Tensor y = rounded(x, kSeed, kStream, 2);
  for (uint64_t i = 2; i < 25; ++i) {
    const uint64_t word = mix(key + (i / 4 + 1) * kStep), number = (word >> (16 * (i % 4))) & 0xffffU;
    EXPECT_EQ(y[static_cast<int64_t>(i - 2)].item<float>() > 1, number >= 0x8000) << "element " << i;
  }
}

TEST(StochasticRounding, tensors_that_do_not_agree_are_a_bug_and_say_so) {
  at::Tensor to = at::empty({4}, at::kBFloat16);
  EXPECT_THROW(round_stochastically(at::zeros({5}), to, 0, 0), InternalError);
  EXPECT_THROW(round_stochastically(at::zeros({4}, at::kDouble), to, 0, 0), InternalError);
  EXPECT_THROW(round_stochastically(at::zeros({8}).slice(0, 0, 8, 2), to, 0, 0), InternalError);
  EXPECT_THROW(round_stochastically(at::zeros({4}), to, 0, 0, -1), InternalError);
  at::Tensor wide = at::empty({4});
  EXPECT_THROW(round_stochastically(at::zeros({4}), wide, 0, 0), InternalError);
}

}  // namespace
}  // namespace trireme
