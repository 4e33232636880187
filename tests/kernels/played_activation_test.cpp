// The activations of a GPU, on a played one: their definition in fp64 for odd widths, strides and addresses,
// and the bytes that they move.
#include "trireme/kernels/activation_kernel.h"

#include "tests/kernels/played_floats.h"

namespace trireme::played_activation_test {
namespace {

using played::Array;
using played::Gpu;
using played::number_of;
using testing::expect_rounded;
using testing::normal_values;
using testing::rows;

// Rows of `width` at distances of `stride`, the first at element `offset`.
struct Shape {
  int64_t T, I, more, offset;
  int64_t stride() const { return 2 * I + more; }
  int64_t elements() const { return offset + T * stride(); }
};
// Whole 16 bytes of bf16 and odd ones; below, at and above what a block takes.
constexpr Shape kShapes[] = {{3, 8, 0, 0},    {2, 1, 0, 0},     {5, 33, 0, 0},  {2, 40, 8, 0},
                             {2, 40, 1, 0},   {3, 24, 0, 1},    {2, 256, 0, 0}, {1, 257, 3, 5},
                             {1, 2056, 0, 8}, {7, 1000, 16, 16}};

// By their definitions: the sigmoid, and the form with tanh.
struct Gated {
  double value, derivative;
  double terms;  // of the derivative: how large they are that are added
};
Gated gated(GluGate gate, double x) {
  if (gate == GluGate::silu) {
    const double s = 1 / (1 + std::exp(-x));
    return {x * s, s * (1 + x * (1 - s)), 1 + std::abs(x)};
  }
  const double root = std::sqrt(2 / M_PI), t = std::tanh(root * (x + 0.044715 * x * x * x));
  const double slope = 2 * root * (1 + 3 * 0.044715 * x * x);
  return {0.5 * x * (1 + t), 0.5 * (1 + t) + 0.25 * x * (1 - t * t) * slope, 1 + std::abs(x) * slope};
}
constexpr GluGate kGates[] = {GluGate::silu, GluGate::gelu_tanh};
// Of each shape, both gates.
template <typename F>
void for_gates_and_shapes(const F& f) {
  for (const GluGate gate : kGates)
    for (const Shape& shape : kShapes) {
      SCOPED_TRACE(::testing::Message()
                   << (gate == GluGate::silu ? "silu " : "gelu ") << shape.T << " x " << shape.I);
      f(gate, shape);
    }
}

template <typename X>
class ActivationKernel : public ::testing::Test {};
TYPED_TEST_SUITE(ActivationKernel, testing::PlayedFloats);

TYPED_TEST(ActivationKernel, gated_units_are_f_of_the_gate_times_up) {
  using X = TypeParam;
  for_gates_and_shapes([](GluGate gate, const Shape& shape) {
    Gpu gpu;
    const std::vector<X> values = normal_values<X>(shape.elements(), 1, 4);
    const Array<X> gate_up = gpu.array(values), act = gpu.array<X>(shape.T * shape.I);
    launch_glu(gate, {number_of<X>(), shape.T, shape.I}, rows(gate_up, shape.stride(), shape.offset),
               rows(act, shape.I), nullptr);
    const std::vector<X> got = act.values();
    for (int64_t i = 0; i < shape.T * shape.I; ++i) {
      const int64_t at = shape.offset + i / shape.I * shape.stride() + i % shape.I;
      const double x = widened(values[at]), up = widened(values[at + shape.I]);
      expect_rounded(got[i], gated(gate, x).value * up, std::abs(x * up), "act", i);
    }
  });
}

TYPED_TEST(ActivationKernel, their_backward_leaves_the_gradients_in_place_and_nothing_else) {
  using X = TypeParam;
  for_gates_and_shapes([](GluGate gate, const Shape& shape) {
    const int64_t I = shape.I, dact_stride = I + shape.more;
    Gpu gpu;
    const std::vector<X> values = normal_values<X>(shape.elements(), 2, 3);
    const std::vector<X> given = normal_values<X>(shape.offset + shape.T * dact_stride, 3);
    const Array<X> gate_up = gpu.array(values), dact = gpu.array(given), act = gpu.array<X>(shape.T * I);
    launch_glu_backward(gate, {number_of<X>(), shape.T, I}, rows(dact, dact_stride, shape.offset),
                        rows(gate_up, shape.stride(), shape.offset), rows(act, I), nullptr);
    const std::vector<X> acts = act.values(), gradients = gate_up.values();
    std::vector<bool> checked(values.size());
    for (int64_t i = 0; i < shape.T * I; ++i) {
      const int64_t row = i / I, at = shape.offset + row * shape.stride() + i % I;
      const double x = widened(values[at]), up = widened(values[at + I]);
      const double d = widened(given[shape.offset + row * dact_stride + i % I]);
      const Gated f = gated(gate, x);
      expect_rounded(acts[i], f.value * up, std::abs(x * up), "act", i);
      expect_rounded(gradients[at], d * up * f.derivative, std::abs(d * up) * f.terms, "dgate", i);
      expect_rounded(gradients[at + I], d * f.value, std::abs(d * x), "dup", i);
      checked[at] = checked[at + I] = true;
    }
    for (size_t i = 0; i < values.size(); ++i)
      if (!checked[i]) {
        EXPECT_EQ(widened(gradients[i]), widened(values[i])) << "between rows";
      }
  });
}

TYPED_TEST(ActivationKernel, their_backward_makes_the_bits_of_act_again) {
  using X = TypeParam;
  constexpr int64_t T = 5, I = 201;
  for (const GluGate gate : kGates) {
    Gpu gpu;
    const Array<X> gate_up = gpu.array(normal_values<X>(T * 2 * I, 8, 3)),
                   dact = gpu.array(normal_values<X>(T * I, 9));
    const Array<X> act = gpu.array<X>(T * I), again = gpu.array<X>(T * I);
    launch_glu(gate, {number_of<X>(), T, I}, rows(gate_up, 2 * I), rows(act, I), nullptr);
    launch_glu_backward(gate, {number_of<X>(), T, I}, rows(dact, I), rows(gate_up, 2 * I), rows(again, I),
                        nullptr);
    const std::vector<X> first = act.values(), second = again.values();
    for (int64_t i = 0; i < T * I; ++i) EXPECT_EQ(widened(first[i]), widened(second[i]));
  }
}

TYPED_TEST(ActivationKernel, backward_of_the_exact_gelu_leaves_the_gradient_and_the_activation) {
  using X = TypeParam;
  for (const int64_t count : {1, 7, 8, 64, 2047, 2048, 2051})
    for (const int64_t offset : {0, 1, 8}) {
      SCOPED_TRACE(::testing::Message() << count << " from " << offset);
      Gpu gpu;
      const std::vector<X> values = normal_values<X>(offset + count, 4, 2);
      const std::vector<X> given = normal_values<X>(offset + count, 5);
      const Array<X> x = gpu.array(values), dact = gpu.array(given);
      launch_exact_gelu_backward({number_of<X>(), 1, count}, rows(dact, count, offset),
                                 rows(x, count, offset), nullptr);
      const std::vector<X> acts = x.values(), gradients = dact.values();
      for (int64_t i = offset; i < offset + count; ++i) {
        const double value = widened(values[i]), below = std::erfc(-value * std::sqrt(0.5)) / 2;
        const double density = std::exp(-value * value / 2) / std::sqrt(2 * std::acos(-1.0));
        expect_rounded(acts[i], value * below, std::abs(value), "act", i);
        const double d = widened(given[i]);
        expect_rounded(gradients[i], d * (below + value * density), std::abs(d) * (1 + std::abs(value)), "dx",
                       i);
      }
    }
}

TYPED_TEST(ActivationKernel, each_value_is_read_and_written_once_in_16_bytes) {
  using X = TypeParam;
  constexpr int64_t T = 3, I = 520, kAll = T * I, kBytes = sizeof(X);
  Gpu gpu;
  const Array<X> gate_up = gpu.array(normal_values<X>(2 * kAll, 6)),
                 dact = gpu.array(normal_values<X>(kAll, 7));
  const Array<X> act = gpu.array<X>(kAll);
  const auto expect_counts = [&](int64_t read_values, int64_t written_values) {
    const played::Counts& counts = gpu.counts();
    EXPECT_EQ(counts.launches, 1);
    EXPECT_EQ(counts.read_bytes, read_values * kAll * kBytes);
    EXPECT_EQ(counts.distinct_read_bytes, counts.read_bytes);
    EXPECT_EQ(counts.written_bytes, written_values * kAll * kBytes);
    EXPECT_EQ(counts.reads, counts.read_bytes / 16);
    EXPECT_EQ(counts.writes, counts.written_bytes / 16);
    gpu.clear_counts();
  };
  for (const GluGate gate : kGates) {
    launch_glu(gate, {number_of<X>(), T, I}, rows(gate_up, 2 * I), rows(act, I), nullptr);
    expect_counts(2, 1);  // 6 bytes of bf16
    launch_glu_backward(gate, {number_of<X>(), T, I}, rows(dact, I), rows(gate_up, 2 * I), rows(act, I),
                        nullptr);
    expect_counts(3, 3);  // 12
  }
  launch_exact_gelu_backward({number_of<X>(), T, I}, rows(dact, I), rows(act, I), nullptr);
  expect_counts(2, 2);  // 8
}

TEST(ActivationKernelOfExtremes, gates_far_from_zero_and_overflows_are_what_they_are_on_a_cpu) {
  Gpu gpu;
  // Gates, then ups.
  const std::vector<float> values = {-200, -90, 0, 90, 200, 1, 1, 1, 1, 1};
  for (const GluGate gate : kGates) {
    const Array<float> gate_up = gpu.array(values), act = gpu.array<float>(5);
    launch_glu(gate, {GpuNumber::fp32, 1, 5}, rows(gate_up, 10), rows(act, 5), nullptr);
    const std::vector<float> acts = act.values();
    EXPECT_EQ(acts[0], 0);
    EXPECT_NEAR(acts[1], 0, 1e-30);
    EXPECT_EQ(acts[2], 0);
    EXPECT_EQ(acts[3], 90);
    EXPECT_EQ(acts[4], 200);
  }

  const Array<Fp16> narrow = gpu.array(std::vector<Fp16>(2, narrowed<Fp16>(300)));
  const Array<Fp16> d = gpu.array(std::vector<Fp16>(1, narrowed<Fp16>(-300))), out = gpu.array<Fp16>(1);
  launch_glu_backward(GluGate::silu, {GpuNumber::fp16, 1, 1}, rows(d, 1), rows(narrow, 2), rows(out, 1),
                      nullptr);
  EXPECT_EQ(widened(out.values()[0]), INFINITY);
  EXPECT_EQ(widened(narrow.values()[0]), -INFINITY);
  EXPECT_EQ(widened(narrow.values()[1]), -INFINITY);
}

TEST(ActivationKernelOfNothing, no_rows_are_no_launch) {
  Gpu gpu;
  launch_glu(GluGate::silu, {GpuNumber::fp32, 0, 4}, {}, {}, nullptr);
  launch_glu_backward(GluGate::silu, {GpuNumber::fp32, 0, 4}, {}, {}, {}, nullptr);
  launch_exact_gelu_backward({GpuNumber::fp32, 0, 4}, {}, {}, nullptr);
  EXPECT_EQ(gpu.counts().launches, 0);
}

}  // namespace
}  // namespace trireme::played_activation_test
