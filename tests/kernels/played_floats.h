// Elements of the three types of GPU kernels, for tests on a played GPU.
#pragma once

#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "tests/kernels/played_rows.h"

namespace trireme::testing {

using PlayedFloats = ::testing::Types<float, Bf16, Fp16>;

template <typename X>
GpuRows rows(const played::Array<X>& array, int64_t stride, int64_t first = 0) {
  return {array.data() + first, stride};
}

// Of a rounding to X: relative to the value, and among the smallest.
template <typename X>
constexpr double kHalfUnit = 0;
template <typename X>
constexpr double kLeastHalfUnit = 0;
template <>
inline constexpr double kHalfUnit<Bf16> = 0x1p-8;
template <>
inline constexpr double kHalfUnit<Fp16> = 0x1p-11;
template <>
inline constexpr double kLeastHalfUnit<Fp16> = 0x1p-25;

// Of a normal distribution, rounded.
template <typename X>
std::vector<X> normal_values(int64_t count, unsigned seed, double spread = 1) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> value(0, static_cast<float>(spread));
  std::vector<X> values(static_cast<size_t>(count));
  for (X& element : values) element = narrowed<X>(value(generator));
  return values;
}

// Whether `got` is `expected`, computed in fp32 and rounded once to X. `terms`: how large the numbers are
// that fp32 adds up on the way.
template <typename X>
void expect_rounded(X got, double expected, double terms, const char* what, int64_t at) {
  constexpr double kRoundings = 8 * 0x1p-24;
  EXPECT_NEAR(static_cast<double>(widened(got)), expected,
              kHalfUnit<X> * std::abs(expected) + kLeastHalfUnit<X> + kRoundings * terms)
      << what << " " << at;
}

}  // namespace trireme::testing
