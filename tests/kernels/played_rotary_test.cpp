// The rotation's kernels, played on the host, against fp64: head widths and pairs that chunks and lanes do not
// divide, rows that lie apart, in place; the bytes that they read and write.
#include <algorithm>

#include <gtest/gtest.h>

#include "trireme/kernels/rotary_kernel.h"

#include "tests/kernels/played_rows.h"
#include "tests/kernels/rotary_oracle.h"

namespace trireme::played_rotary_test {
namespace {

using played::Gpu;
using played::Rows;
using played::worst;

enum class Norms { none, given };

struct Case {
  int64_t head_dim = 16, stride = 0, offset = 0;  // stride: beyond a token's heads
  int64_t tokens = 11;
  int64_t turning_pairs = head_dim / 2;
};
constexpr int64_t kQueries = 3, kKeys = 2, kHeads = kQueries + 2 * kKeys, kTableRows = 5;
constexpr float kEps = 1e-5F;

const std::vector<Case> kCases = {
    {.head_dim = 2},
    {.head_dim = 6},
    {.head_dim = 12, .stride = 4},  // rows at multiples of 16 bytes, halves of a head not
    {.head_dim = 16, .tokens = 40},
    {.head_dim = 16, .stride = 5},
    {.head_dim = 16, .stride = 8, .offset = 1},
    {.head_dim = 80},
    {.head_dim = 96, .stride = 8},
    {.head_dim = 128, .tokens = 9},
    {.head_dim = 512, .tokens = 2},
    {.head_dim = 48, .stride = 8, .turning_pairs = 8},
    {.head_dim = 48, .offset = 1, .turning_pairs = 8},
    {.head_dim = 496, .tokens = 2, .turning_pairs = 3},  // as many chunks as a warp has lanes
    {.head_dim = 512, .tokens = 2, .turning_pairs = 64},
};
std::vector<Case> all_cases() {
  std::vector<Case> all = kCases;
  for (const int64_t D : {8, 64, 96, 256})
    for (const int64_t r : {int64_t{1}, int64_t{3}, D / 8, D / 2})
      all.push_back({.head_dim = D, .tokens = 7, .turning_pairs = r});
  return all;
}

// Tables and norms, on the played GPU and in fp64.
template <typename W>
struct Tables {
  std::vector<float> cos, sin;
  Rows<W> q_norm, k_norm;
  float *cos_data, *sin_data;

  Tables(Gpu& gpu, const Case& c)
      : q_norm(Rows<W>::random(gpu, 1, c.head_dim, 0, 0, 21)),
        k_norm(Rows<W>::random(gpu, 1, c.head_dim, 0, 0, 22)) {
    for (int64_t i = 0; i < kTableRows * c.turning_pairs; ++i) {
      cos.push_back(std::cos(0.7F * static_cast<float>(i)));
      sin.push_back(std::sin(0.7F * static_cast<float>(i)));
    }
    cos_data = gpu.array(cos).data();
    sin_data = gpu.array(sin).data();
  }
};

template <typename T, typename W>
RotaryKernel rotary_of(const Case& c, Norms norms, const Tables<W>& tables, const Rows<T>& from,
                       const Rows<T>& to) {
  RotaryKernel rotary;
  rotary.number = played::number_of<T>();
  rotary.tokens = c.tokens;
  rotary.heads = kHeads;
  rotary.query_heads = kQueries;
  rotary.rotated_heads = kQueries + kKeys;
  rotary.head_dim = c.head_dim;
  rotary.turning_pairs = c.turning_pairs;
  rotary.from = from.rows();
  rotary.to = to.rows();
  rotary.cos = tables.cos_data;
  rotary.sin = tables.sin_data;
  rotary.table_rows = kTableRows;
  rotary.first_row = 13;
  if (norms == Norms::given) {
    rotary.q_norm = tables.q_norm.data();
    rotary.k_norm = tables.k_norm.data();
    rotary.norm_number = played::number_of<W>();
  }
  rotary.eps = kEps;
  rotary.multiprocessors = 1;
  return rotary;
}

std::vector<double> part(const std::vector<double>& values, int64_t begin, int64_t count) {
  return {values.begin() + begin, values.begin() + begin + count};
}
std::vector<double> wide(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

// f(first value's index, token, head, its oracle) for each rotated head.
template <typename W, typename F>
void each_rotated_head(const Case& c, Norms norms, const Tables<W>& tables, const F& f) {
  const std::vector<double> q = tables.q_norm.values(), k = tables.k_norm.values();
  const std::vector<double> cos = wide(tables.cos), sin = wide(tables.sin), none;
  const int64_t r = c.turning_pairs;
  for (int64_t token = 0; token < c.tokens; ++token)
    for (int64_t head = 0; head < kQueries + kKeys; ++head) {
      const int64_t row = (13 + token) % kTableRows;
      f((token * kHeads + head) * c.head_dim, token, head,
        testing::RotaryOracle(part(cos, row * r, r), part(sin, row * r, r),
                              norms == Norms::none ? none
                              : head < kQueries    ? q
                                                   : k,
                              kEps));
    }
}

template <typename T, typename W>
void forward_equals_fp64(const Case& c, Norms norms) {
  Gpu gpu;
  const int64_t width = kHeads * c.head_dim, stride = width + c.stride, D = c.head_dim;
  const Tables<W> tables(gpu, c);
  const auto from = Rows<T>::random(gpu, c.tokens, width, stride, c.offset, 1);
  const Rows<T> to(gpu, c.tokens, width, stride, c.offset);
  std::vector<double> expected = from.values();
  each_rotated_head(c, norms, tables, [&](int64_t at, int64_t, int64_t, const testing::RotaryOracle& oracle) {
    std::ranges::copy(oracle.forward(part(expected, at, D)), expected.begin() + at);
  });
  launch_rotary(rotary_of(c, norms, tables, from, to), nullptr);
  EXPECT_LT(worst(to.values(), expected), 1e-6 + played::rounding_of<T>() / 2);
  launch_rotary(rotary_of(c, norms, tables, from, from), nullptr);
  EXPECT_EQ(from.values(), to.values()) << "in place";
}

template <typename T, typename W>
void backward_equals_fp64(const Case& c, Norms norms) {
  Gpu gpu;
  const int64_t width = kHeads * c.head_dim, stride = width + c.stride, D = c.head_dim;
  const int64_t rotated = (kQueries + kKeys) * D;
  const Tables<W> tables(gpu, c);
  const auto from = Rows<T>::random(gpu, c.tokens, width, stride, c.offset, 1);
  const auto before = Rows<T>::random(gpu, c.tokens, rotated, rotated, 0, 2);
  const Rows<T> to(gpu, c.tokens, width, stride, c.offset);
  const auto dq = Rows<float>::random(gpu, 1, D, 0, 0, 3), dk = Rows<float>::random(gpu, 1, D, 0, 0, 4);
  std::vector<double> expected = from.values(), dq_expected = dq.values(), dk_expected = dk.values();
  const std::vector<double> dq_given = dq_expected, x_all = before.values();
  each_rotated_head(
      c, norms, tables, [&](int64_t at, int64_t token, int64_t head, const testing::RotaryOracle& oracle) {
        std::ranges::copy(oracle.backward(part(expected, at, D), part(x_all, token * rotated + head * D, D),
                                          head < kQueries ? dq_expected : dk_expected),
                          expected.begin() + at);
      });
  const auto run = [&](const Rows<T>& into) {
    RotaryKernel rotary = rotary_of(c, norms, tables, from, into);
    if (norms == Norms::given) rotary.before = before.rows();
    const auto partial = gpu.array<float>(rotary_partial_rows(rotary) * 2 * D);
    launch_rotary_backward(rotary, partial.data(), dq.data(), dk.data(), nullptr);
  };
  run(to);
  EXPECT_LT(worst(to.values(), expected), 2e-6 + played::rounding_of<T>() / 2);
  EXPECT_LT(worst(dq.values(), dq_expected), 2e-6);
  EXPECT_LT(worst(dk.values(), dk_expected), 2e-6);
  run(from);
  EXPECT_EQ(from.values(), to.values()) << "in place";
  if (norms == Norms::given) {  // added a second time
    EXPECT_GT(worst(dq.values(), dq_expected), 1e-3);
  }
}

template <typename F>
void for_cases(const F& body) {
  for (const Case& c : all_cases())
    for (const Norms norms : {Norms::none, Norms::given}) {
      SCOPED_TRACE(::testing::Message()
                   << c.turning_pairs << " pairs of heads of " << c.head_dim << ", stride " << c.stride
                   << ", offset " << c.offset << (norms == Norms::given ? ", norms" : ""));
      body(c, norms);
    }
}

TEST(PlayedRotary, forward_equals_fp64_in_place_too) {
  for_cases([](const Case& c, Norms norms) {
    forward_equals_fp64<float, float>(c, norms);
    forward_equals_fp64<Bf16, Bf16>(c, norms);
    forward_equals_fp64<Fp16, float>(c, norms);
  });
}

TEST(PlayedRotary, backward_equals_fp64_in_place_too) {
  for_cases([](const Case& c, Norms norms) {
    backward_equals_fp64<float, float>(c, norms);
    backward_equals_fp64<Bf16, Bf16>(c, norms);
    backward_equals_fp64<Fp16, float>(c, norms);
  });
}

// Of weights in bf16.
TEST(PlayedRotary, adding_1_to_norms_gives_the_bits_of_fp32_weights_with_1_in_them) {
  const Case c{.head_dim = 96, .tokens = 10, .turning_pairs = 24};
  Gpu gpu;
  const Tables<Bf16> tables(gpu, c);
  const int64_t D = c.head_dim, width = kHeads * D, rotated = (kQueries + kKeys) * D;
  const auto x = Rows<Bf16>::random(gpu, c.tokens, width, width, 0, 1),
             before = Rows<Bf16>::random(gpu, c.tokens, rotated, rotated, 0, 2);
  const auto added = [&](const Rows<Bf16>& norm) {
    std::vector<float> values;
    for (const double w : norm.values()) values.push_back(static_cast<float>(w) + 1);
    return gpu.array(values);
  };
  const auto q_norm = added(tables.q_norm), k_norm = added(tables.k_norm);
  const auto run = [&](bool adds_one) {
    const Rows<Bf16> y(gpu, c.tokens, width, width), dx(gpu, c.tokens, width, width);
    const auto dq = Rows<float>::random(gpu, 1, D, 0, 0, 3), dk = Rows<float>::random(gpu, 1, D, 0, 0, 4);
    RotaryKernel rotary = rotary_of(c, Norms::given, tables, x, y);
    rotary.norms_add_one = adds_one;
    if (!adds_one) {
      rotary.q_norm = q_norm.data();
      rotary.k_norm = k_norm.data();
      rotary.norm_number = GpuNumber::fp32;
    }
    launch_rotary(rotary, nullptr);
    rotary.to = dx.rows();
    rotary.before = before.rows();
    const auto partial = gpu.array<float>(rotary_partial_rows(rotary) * 2 * D);
    launch_rotary_backward(rotary, partial.data(), dq.data(), dk.data(), nullptr);
    return std::vector{y.values(), dx.values(), dq.values(), dk.values()};
  };
  EXPECT_EQ(run(true), run(false));
}

// Of bf16 heads: one read and one write of the rotated ones, the table once; in place none of the others and,
// without norms, none of what stays.
TEST(PlayedRotary, reads_and_writes_no_more_than_the_fused_ideal_in_accesses_of_16_bytes) {
  for (const Case& c :
       {Case{.head_dim = 128, .tokens = 10}, Case{.head_dim = 256, .tokens = 10, .turning_pairs = 32}}) {
    SCOPED_TRACE(c.turning_pairs);
    Gpu gpu;
    const Tables<Bf16> tables(gpu, c);
    const int64_t width = kHeads * c.head_dim;
    const auto x = Rows<Bf16>::random(gpu, c.tokens, width, width, 0, 1);
    const Rows<Bf16> y(gpu, c.tokens, width, width);
    const int64_t heads = c.tokens * (kQueries + kKeys);
    const int64_t table_bytes = 2 * 4 * kTableRows * c.turning_pairs;
    const auto expect = [&](int64_t elements, int64_t beside_bytes) {
      EXPECT_EQ(gpu.counts().distinct_read_bytes, 2 * elements + beside_bytes);
      EXPECT_EQ(gpu.counts().written_bytes, 2 * elements);
      EXPECT_EQ(gpu.counts().writes * 16, gpu.counts().written_bytes);
      EXPECT_EQ(gpu.counts().reads * 16, gpu.counts().read_bytes);
      gpu.clear_counts();
    };
    gpu.clear_counts();
    for (const Norms norms : {Norms::none, Norms::given}) {
      const int64_t weights = norms == Norms::given ? 2 * 2 * c.head_dim : 0;
      launch_rotary(rotary_of(c, norms, tables, x, x), nullptr);
      expect(heads * (norms == Norms::given ? c.head_dim : 2 * c.turning_pairs), table_bytes + weights);
      launch_rotary(rotary_of(c, norms, tables, x, y), nullptr);
      expect(c.tokens * width, table_bytes + weights);
    }
    launch_rotary_backward(rotary_of(c, Norms::none, tables, x, x), nullptr, nullptr, nullptr, nullptr);
    expect(heads * 2 * c.turning_pairs, table_bytes);
  }
}

TEST(PlayedRotary, knows_heads_whose_chunks_a_warp_has_lanes_for) {
  EXPECT_TRUE(knows_rotary_head(512, 256));
  EXPECT_TRUE(knows_rotary_head(512, 64));
  EXPECT_TRUE(knows_rotary_head(496, 3));
  EXPECT_FALSE(knows_rotary_head(512, 3));
  EXPECT_FALSE(knows_rotary_head(514, 257));
}

}  // namespace
}  // namespace trireme::played_rotary_test
