// Cross entropy on a played GPU: its definition in fp64 for odd widths, strides and addresses, rows with
// extremes, and the bytes that it moves.
#include <algorithm>

#include "trireme/kernels/cross_entropy_kernel.h"

#include "tests/kernels/played_floats.h"

namespace trireme::played_cross_entropy_test {
namespace {

using played::Array;
using played::Gpu;
using played::number_of;
using testing::expect_rounded;
using testing::normal_values;
using testing::rows;

constexpr double kScale = 0.25;

struct Expected {
  double loss = 0;
  std::vector<double> probability, gradient;
};
template <typename X>
Expected expected_row(const X* logits, int64_t V, int64_t target, double cap) {
  const std::vector<double> zeros(static_cast<size_t>(V), 0);
  Expected expected{0, zeros, zeros};
  if (target < 0) return expected;
  std::vector<double> wide(static_cast<size_t>(V));
  std::transform(logits, logits + V, wide.begin(), [](X value) { return widened(value); });
  const double most = *std::max_element(wide.begin(), wide.end());
  double sum = 0;
  for (const double value : wide) sum += std::exp(value - most);
  expected.loss = std::log(sum) + most - wide[target];
  for (int64_t v = 0; v < V; ++v) {
    // d(cap tanh(u)) / d(cap u)
    const double slope = cap > 0 ? std::pow(std::cosh(std::atanh(wide[v] / cap)), -2) : 1;
    expected.probability[v] = std::exp(wide[v] - most) / sum;
    expected.gradient[v] = (expected.probability[v] - (v == target ? 1 : 0)) * kScale * slope;
  }
  return expected;
}

template <typename X>
class CrossEntropyKernel : public ::testing::Test {};
TYPED_TEST_SUITE(CrossEntropyKernel, testing::PlayedFloats);

template <typename X>
void expect_definition(int64_t V, int64_t stride, int64_t offset, double spread,
                       const std::vector<int64_t>& targets, double cap = 0) {
  SCOPED_TRACE(::testing::Message() << "V " << V << ", stride " << stride << ", from " << offset << ", cap "
                                    << cap);
  const auto T = static_cast<int64_t>(targets.size());
  std::vector<X> values = normal_values<X>(offset + T * stride, 1, spread);
  if (cap > 0)
    for (X& value : values) value = narrowed<X>(static_cast<float>(cap * std::tanh(widened(value) / cap)));
  for (const bool gradient : {false, true}) {
    Gpu gpu;
    const Array<X> logits = gpu.array(values);
    const Array<float> loss = gpu.array<float>(T);
    const std::optional<float> scale = gradient ? std::optional<float>(kScale) : std::nullopt;
    launch_cross_entropy({number_of<X>(), T, V}, rows(logits, stride, offset), gpu.array(targets).data(),
                         loss.data(), scale, nullptr, static_cast<float>(cap));
    const std::vector<X> got = logits.values();
    const std::vector<float> losses = loss.values();
    std::vector<bool> checked(values.size());
    for (int64_t t = 0; t < T; ++t) {
      const int64_t first = offset + t * stride;
      const Expected expected = expected_row(values.data() + first, V, targets[t], cap);
      EXPECT_NEAR(losses[t], expected.loss, 2e-6 * std::max(1.0, expected.loss)) << "row " << t;
      if (!gradient) continue;
      for (int64_t v = 0; v < V; ++v) {
        // An exponent x - most of fp32 is inexact by a part of x; at the target 1 is taken away.
        const double terms =
            expected.probability[v] * kScale * (4 + 2 * spread) + (v == targets[t] ? kScale : 0);
        expect_rounded(got[first + v], expected.gradient[v], terms, "d", v);
        checked[first + v] = true;
      }
    }
    for (size_t i = 0; i < values.size(); ++i)
      if (!checked[i]) {
        ASSERT_EQ(widened(got[i]), widened(values[i])) << "element " << i;
      }
  }
}

TYPED_TEST(CrossEntropyKernel, is_its_definition_for_any_width_stride_and_address) {
  for (const int64_t V : {1, 2, 7, 8, 16, 30, 127, 1000, 1023, 1031, 4099})
    expect_definition<TypeParam>(V, V, 0, 4, {0, V - 1, -100, V / 2, V / 3});
  expect_definition<TypeParam>(1000, 1003, 5, 4, {17, 999, -100});
  expect_definition<TypeParam>(3, 8, 1, 4, {0, 1, 2, -1});
}

TYPED_TEST(CrossEntropyKernel, of_capped_logits_the_gradient_is_that_of_what_was_capped) {
  for (const float cap : {30.0F, 2.0F}) {
    // Most of them near the cap.
    for (const int64_t V : {1, 7, 127, 1031, 4099})
      expect_definition<TypeParam>(V, V, 0, 1.2 * cap, {0, V - 1, -100, V / 2, V / 3}, cap);
    expect_definition<TypeParam>(1000, 1003, 5, 1.2 * cap, {17, 999, -100}, cap);
    expect_definition<TypeParam>(32781, 32781, 0, 1.2 * cap, {32780, -100}, cap);
  }
}

TYPED_TEST(CrossEntropyKernel, a_row_of_32_kib_or_more_has_a_block_of_its_own_size) {
  const int64_t V = 32768 / static_cast<int64_t>(sizeof(TypeParam));
  expect_definition<TypeParam>(V, V, 0, 8, {0, V - 1});
  expect_definition<TypeParam>(V + 13, V + 13, 0, 8, {V + 12, 4000, -100});
}

TEST(CrossEntropyKernelOfBf16, takes_a_vocabulary_of_262144) {
  expect_definition<Bf16>(262144, 262144, 0, 2, {262143});
}

TYPED_TEST(CrossEntropyKernel, memory_gives_each_logit_once_and_takes_each_gradient_once) {
  using X = TypeParam;
  constexpr int64_t T = 2, V = 1024, kBytes = sizeof(X);
  Gpu gpu;
  const Array<X> logits = gpu.array(normal_values<X>(T * V, 3));
  const Array<float> loss = gpu.array<float>(T);
  const Array<int64_t> targets = gpu.array(std::vector<int64_t>{5, 1000}),
                       none = gpu.array(std::vector<int64_t>{-100, -100});
  launch_cross_entropy({number_of<X>(), T, V}, rows(logits, V), targets.data(), loss.data(), std::nullopt,
                       nullptr);
  EXPECT_EQ(gpu.counts().launches, 1);
  // Beside the logits: targets and losses.
  EXPECT_EQ(gpu.counts().distinct_read_bytes, T * (V * kBytes + 8));
  EXPECT_EQ(gpu.counts().written_bytes, T * 4);
  gpu.clear_counts();
  launch_cross_entropy({number_of<X>(), T, V}, rows(logits, V), targets.data(), loss.data(), 1.0F, nullptr);
  EXPECT_EQ(gpu.counts().launches, 1);
  EXPECT_EQ(gpu.counts().distinct_read_bytes, T * (V * kBytes + 8));
  EXPECT_EQ(gpu.counts().distinct_written_bytes, T * (V * kBytes + 4));
  // The second reading is of the caches. Each of 128 threads reads the row's target; one its logit.
  EXPECT_EQ(gpu.counts().read_bytes, T * (2 * V * kBytes + 128 * 8 + kBytes));
  EXPECT_EQ(gpu.counts().reads, T * (2 * V * kBytes / 16 + 128 + 1));
  EXPECT_EQ(gpu.counts().written_bytes, T * (V * kBytes + 4 + kBytes));
  gpu.clear_counts();
  launch_cross_entropy({number_of<X>(), T, V}, rows(logits, V), none.data(), loss.data(), 1.0F, nullptr);
  EXPECT_EQ(gpu.counts().distinct_read_bytes, T * 8);
  EXPECT_EQ(gpu.counts().written_bytes, T * (V * kBytes + 4));
}

float loss_of(const std::vector<float>& row, int64_t target) {
  Gpu gpu;
  const Array<float> logits = gpu.array(row), loss = gpu.array<float>(1);
  const auto V = static_cast<int64_t>(row.size());
  launch_cross_entropy({GpuNumber::fp32, 1, V}, rows(logits, V),
                       gpu.array(std::vector<int64_t>{target}).data(), loss.data(), std::nullopt, nullptr);
  return loss.values()[0];
}

TEST(CrossEntropyKernelOfExtremes, tokens_that_are_ruled_out_do_not_count) {
  std::vector<float> row(1000, -INFINITY);
  row[700] = 3;
  row[701] = 3;
  EXPECT_NEAR(loss_of(row, 700), std::log(2.0), 1e-6);
  EXPECT_EQ(loss_of(row, 0), INFINITY);
}

TEST(CrossEntropyKernelOfExtremes, large_logits_do_not_overflow) {
  std::vector<float> row(1000, 3e4F);
  EXPECT_NEAR(loss_of(row, 1), std::log(1000.0), 1e-2);
  row[3] = -3e4F;
  EXPECT_NEAR(loss_of(row, 3), 6e4 + std::log(999.0), 1e-2);
}

TEST(CrossEntropyKernelOfExtremes, what_is_not_a_number_is_seen_in_the_loss) {
  for (const float value : {NAN, INFINITY})
    for (const size_t place : {size_t{0}, size_t{500}, size_t{999}}) {
      std::vector<float> row(1000, 1);
      row[place] = value;
      EXPECT_TRUE(std::isnan(loss_of(row, 3))) << value << " at " << place;
    }
  EXPECT_TRUE(std::isnan(loss_of(std::vector<float>(100, -INFINITY), 3)));
  EXPECT_TRUE(std::isnan(loss_of({1, 2, 3}, 3))) << "a target outside of the vocabulary";
}

}  // namespace
}  // namespace trireme::played_cross_entropy_test
