#include "trireme/kernels/vector_math.h"

#include <cmath>

#include <gtest/gtest.h>

namespace {

TEST(VectorMath, exp_is_right_to_2e_minus_7_over_its_whole_range) {
  for (double x = -87; x < 88; x += 0.00137) {
    const double truth = std::exp(static_cast<double>(static_cast<float>(x)));
    EXPECT_NEAR(vector_exp(static_cast<float>(x)) / truth, 1.0, 2e-7) << x;
  }
}

TEST(VectorMath, exp_of_the_far_ends) {
  EXPECT_LT(vector_exp(-1000.0f), 2e-38f);
  EXPECT_LT(vector_exp(-INFINITY), 2e-38f);
  EXPECT_GT(vector_exp(1000.0f), 1e38f);
  EXPECT_TRUE(std::isfinite(vector_exp(1000.0f)));
  EXPECT_TRUE(std::isnan(vector_exp(NAN)));
}

TEST(VectorMath, bf16_rounds_to_nearest_even) {
  EXPECT_EQ(float_to_bf16(1.0f), 0x3f80);
  EXPECT_EQ(float_to_bf16(1.00390625f), 0x3f80);  // halfway: to even
  EXPECT_EQ(float_to_bf16(1.01171875f), 0x3f82);  // halfway: to even
  EXPECT_EQ(float_to_bf16(1.0040f), 0x3f81);
  EXPECT_EQ(bf16_to_float(0x4049), 3.140625f);
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(NAN))));
  EXPECT_EQ(bf16_to_float(float_to_bf16(INFINITY)), INFINITY);
}

}  // namespace
