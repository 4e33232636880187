#include "trireme/eval/tensor_extremes.h"

#include <limits>

#include <gtest/gtest.h>

namespace trireme::tensor_extremes_test {
namespace {

ParameterSpec parameter(const char* name, int64_t offset) {
  ParameterSpec spec;
  spec.name = name;
  spec.shape = {4};
  spec.offset = offset;
  spec.elements = 4;
  return spec;
}

std::vector<ComparedTensor> compared_with(const at::Tensor& ours, const at::Tensor& reference) {
  UnitSpec unit;
  unit.name = "layer.0";
  unit.parameters = {parameter("q", 0), parameter("v", 4)};
  unit.elements = 8;
  std::vector<ComparedTensor> compared;
  compare_gradients(
      unit, ours, [&](const ParameterSpec& spec) { return reference.narrow(0, spec.offset, spec.elements); },
      compared);
  return compared;
}

// As of q and k where each token sees itself alone: rounding is no error there, and a gradient is.
TEST(TensorExtremes, a_gradient_that_is_exactly_zero_is_compared_with_the_largest_of_its_unit) {
  const at::Tensor reference = at::cat({at::zeros({4}), at::full({4}, 2.0)});
  const auto error = [&](double ours_of_q) {
    return compared_with(at::cat({at::full({4}, ours_of_q), at::full({4}, 2.0)}), reference)
        .front()
        .extremes.error();
  };
  EXPECT_EQ(error(0), 0);
  EXPECT_NEAR(error(2e-7), 1e-7, 1e-10);
  EXPECT_NEAR(error(0.5), 0.25, 1e-6);
}

// As of a router whose tokens have one expert each: 0 here, and 1e-18 where fp64 adds it up.
TEST(TensorExtremes, a_gradient_of_fp64s_rounding_is_compared_with_the_largest_of_its_unit) {
  const auto error = [](double reference_of_q) {
    return compared_with(at::cat({at::zeros({4}), at::full({4}, 2.0)}),
                         at::cat({at::full({4}, reference_of_q), at::full({4}, 2.0)}))
        .front()
        .extremes.error();
  };
  EXPECT_LT(error(1e-15), 1e-14);
  EXPECT_NEAR(error(1e-9), 1, 1e-6) << "which is none";
}

TEST(TensorExtremes, anything_beside_a_unit_of_zeroes_is_beyond_every_tolerance) {
  const auto compared = compared_with(at::full({8}, 1e-7), at::zeros({8}));
  EXPECT_EQ(compared.front().extremes.error(), std::numeric_limits<double>::infinity());
}

TEST(TensorExtremes, an_infinite_reference_is_beyond_every_tolerance) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double ours : {1.0, infinity}) {
    Extremes extremes;
    extremes.add(ours, infinity);
    EXPECT_EQ(extremes.error(), infinity);
  }
}

}  // namespace
}  // namespace trireme::tensor_extremes_test
