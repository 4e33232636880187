// AdamW's kernel on a played GPU: it is AdamW in fp64, rounds bf16 moments by the documented bits, steps
// spans of every length and alignment, and moves each value once.
#include <random>

#include <gtest/gtest.h>

#include "trireme/shard/adamw_kernel.h"

#include "tests/kernels/played_gpu.h"

namespace trireme::played_adamw_test {
namespace {

using played::Array;
using played::Gpu;

constexpr double kBeta1 = 0.9, kBeta2 = 0.99, kEpsilon = 1e-8, kDecay = 0.1, kRate = 3e-2, kFactor = 0.5;
constexpr int kSteps = 7;
constexpr uint64_t kSeed = 11;
constexpr uint16_t kUntouched = 0x4321;

float value_of(float moment) {
  return moment;
}
float value_of(Bf16 moment) {
  return widened(moment);
}

// Elements mid-way in a training, between `offset` others that no step may touch.
template <typename Moment>
struct State {
  std::mt19937 generator{5};
  Gpu gpu;
  bool split;
  std::vector<float> master, gradient;
  std::vector<Moment> mean, square;
  int64_t offset, count;
  uint64_t first_element;
  Array<float> there_master, there_gradient;
  Array<Moment> there_mean, there_square;
  Array<Bf16> there_values;  // what compute reads
  Array<uint16_t> there_low;

  State(int64_t offset, int64_t count, uint64_t first_element, bool split)
      : split(split),
        master(values(offset, count, 1)),
        gradient(values(offset, count, 1)),
        mean(moments(values(offset, count, 0.1F))),
        square(moments(squares_of(values(offset, count, 0.5F)))),
        offset(offset),
        count(count),
        first_element(first_element),
        there_master(gpu.array(master)),
        there_gradient(gpu.array(gradient)),
        there_mean(gpu.array(mean)),
        there_square(gpu.array(square)),
        there_values(gpu.array(halves().first)),
        there_low(gpu.array(halves().second)) {}

  void step(bool writes_values = true) {
    launch_adamw(AdamwSpan<Moment>{split ? nullptr : there_master.data() + offset,
                                   split ? there_low.data() + offset : nullptr,
                                   split || writes_values ? there_values.data() + offset : nullptr,
                                   there_gradient.data() + offset, there_mean.data() + offset,
                                   there_square.data() + offset, count, rounding_key(kSeed, 4),
                                   rounding_key(kSeed, 5), first_element},
                 adamw_step(kBeta1, kBeta2, kEpsilon, kDecay, kRate, kFactor, kSteps), nullptr);
  }
  std::vector<float> masters_there() const {
    std::vector<float> masters = there_master.values();
    if (!split) return masters;
    const std::vector<Bf16> values = there_values.values();
    const std::vector<uint16_t> low = there_low.values();
    for (size_t i = 0; i < masters.size(); ++i) {
      const uint32_t bits = master_of(values[i].bits, low[i]);
      memcpy(&masters[i], &bits, sizeof(bits));
    }
    return masters;
  }

 private:
  std::pair<std::vector<Bf16>, std::vector<uint16_t>> halves() const {
    std::vector<Bf16> values(master.size(), Bf16{kUntouched});
    std::vector<uint16_t> low(master.size(), kUntouched);
    for (size_t i = 0; split && i < master.size(); ++i) {
      uint32_t bits;
      memcpy(&bits, &master[i], sizeof(bits));
      values[i].bits = value_of_master(bits);
      low[i] = low_of_master(bits);
    }
    return {values, low};
  }
  std::vector<float> values(int64_t before, int64_t inside, float spread) {
    std::normal_distribution<float> value(0, spread);
    std::vector<float> result(static_cast<size_t>(2 * before + inside));
    for (float& element : result) element = value(generator);
    return result;
  }
  std::vector<float> squares_of(std::vector<float> of) {
    for (float& element : of) element *= element;
    return of;
  }
  std::vector<Moment> moments(const std::vector<float>& of) {
    std::vector<Moment> result;
    result.reserve(of.size());
    for (const float value : of) result.push_back(narrowed<Moment>(value));
    return result;
  }
};

// The bits that stochastic_rounding.h says.
uint64_t mixed(uint64_t state) {
  uint64_t x = state + 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}
Bf16 documented_rounding(float value, uint64_t stream, uint64_t element) {
  const uint64_t key = mixed(mixed(kSeed) ^ stream), word = mixed(key + element / 4 * 0x9e3779b97f4a7c15ULL);
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return {static_cast<uint16_t>((bits + ((word >> (16 * (element % 4))) & 0xffff)) >> 16)};
}

template <typename Moment>
void expect_adamw(int64_t offset, int64_t count, uint64_t first_element, bool split) {
  SCOPED_TRACE(::testing::Message() << count << " from " << offset << ", element " << first_element
                                    << (split ? ", split masters" : ""));
  State<Moment> state(offset, count, first_element, split);
  state.step();
  EXPECT_EQ(state.gpu.counts().launches, 1);
  const std::vector<float> master = state.masters_there();
  const std::vector<Moment> mean = state.there_mean.values(), square = state.there_square.values();
  const std::vector<Bf16> values = state.there_values.values();
  EXPECT_EQ(state.there_gradient.values(), state.gradient);
  for (int64_t i = 0; i < 2 * offset + count; ++i) {
    if (i < offset || i >= offset + count) {
      ASSERT_EQ(master[i], state.master[i]);
      ASSERT_TRUE(split || values[i].bits == kUntouched);
      ASSERT_EQ(value_of(mean[i]), value_of(state.mean[i]));
      ASSERT_EQ(value_of(square[i]), value_of(state.square[i]));
      continue;
    }
    const double g = kFactor * static_cast<double>(state.gradient[i]);
    const double m = kBeta1 * static_cast<double>(value_of(state.mean[i])) + (1 - kBeta1) * g;
    const double v = kBeta2 * static_cast<double>(value_of(state.square[i])) + (1 - kBeta2) * g * g;
    const double expected = static_cast<double>(state.master[i]) * (1 - kRate * kDecay) -
                            kRate / (1 - std::pow(kBeta1, kSteps)) * m /
                                (std::sqrt(v / (1 - std::pow(kBeta2, kSteps))) + kEpsilon);
    ASSERT_NEAR(master[i], expected, 1e-6);
    uint32_t bits;
    memcpy(&bits, &master[i], sizeof(bits));
    ASSERT_EQ(values[i].bits, static_cast<uint16_t>((bits + 0x8000U) >> 16));
    if constexpr (std::is_same_v<Moment, float>) {
      ASSERT_NEAR(mean[i], m, 2e-7 * (std::abs(m) + std::abs(g)));
      ASSERT_NEAR(square[i], v, 2e-7 * v);
    } else {
      // One fp32 operation each, as the header has them.
      const float g32 = state.gradient[i] * static_cast<float>(kFactor);
      const float m32 =
          value_of(state.mean[i]) * static_cast<float>(kBeta1) + g32 * static_cast<float>(1 - kBeta1);
      const float v32 =
          value_of(state.square[i]) * static_cast<float>(kBeta2) + g32 * g32 * static_cast<float>(1 - kBeta2);
      const uint64_t element = first_element + static_cast<uint64_t>(i - offset);
      ASSERT_EQ(mean[i].bits, documented_rounding(m32, 4, element).bits) << "element " << i;
      ASSERT_EQ(square[i].bits, documented_rounding(v32, 5, element).bits) << "element " << i;
    }
  }
}

TEST(AdamwKernel, with_fp32_moments_is_adamw_in_fp64) {
  for (const int64_t count : {1, 7, 8, 9, 1003, 2048, 4100})
    for (const int64_t offset : {0, 1, 4})
      for (const bool split : {false, true}) expect_adamw<float>(offset, count, 0, split);
}

TEST(AdamwKernel, with_bf16_moments_rounds_them_by_the_bits_of_their_elements) {
  for (const int64_t count : {1, 8, 9, 1003, 4100})
    for (const int64_t offset : {0, 1, 8})
      for (const uint64_t first_element : {0U, 5U, 1022U})
        for (const bool split : {false, true}) expect_adamw<Bf16>(offset, count, first_element, split);
}

template <typename Moment>
void expect_one_passage(int64_t read_bytes, int64_t written_bytes, bool writes_values, bool split = false) {
  constexpr int64_t kCount = 4096;
  State<Moment> state(0, kCount, 0, split);
  state.step(writes_values);
  const played::Counts& counts = state.gpu.counts();
  EXPECT_EQ(counts.read_bytes, kCount * read_bytes);
  EXPECT_EQ(counts.written_bytes, kCount * written_bytes);
  EXPECT_EQ(counts.reads + counts.writes, kCount * (read_bytes + written_bytes) / 16);
}

TEST(AdamwKernel, moves_each_value_once_in_16_bytes) {
  expect_one_passage<float>(16, 12, false);
  expect_one_passage<Bf16>(12, 8, false);
  expect_one_passage<float>(16, 12 + 2, true);
  expect_one_passage<Bf16>(12, 8 + 2, true);
  expect_one_passage<float>(16, 12, true, /*split=*/true);
  expect_one_passage<Bf16>(12, 8, true, /*split=*/true);
}

}  // namespace
}  // namespace trireme::played_adamw_test
