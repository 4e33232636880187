// The rotation's kernels, played on the host, against fp64: head widths that chunks and lanes do not divide,
// rows that lie apart, in place; the bytes that they read and write.
#include <gtest/gtest.h>

#include "trireme/kernels/rotary_kernel.h"

#include "tests/kernels/played_rows.h"

namespace trireme::played_rotary_test {
namespace {

using played::Gpu;
using played::Rows;
using played::worst;

enum class Norms { none, given };

struct Case {
  int64_t head_dim = 16, stride = 0, offset = 0;  // stride: beyond a token's heads
  int64_t tokens = 11;
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
};

// Tables and norms, on the played GPU and in fp64.
template <typename W>
struct Tables {
  std::vector<float> cos, sin;
  Rows<W> q_norm, k_norm;
  float *cos_data, *sin_data;

  Tables(Gpu& gpu, int64_t head_dim)
      : q_norm(Rows<W>::random(gpu, 1, head_dim, 0, 0, 21)),
        k_norm(Rows<W>::random(gpu, 1, head_dim, 0, 0, 22)) {
    for (int64_t i = 0; i < kTableRows * head_dim / 2; ++i) {
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

// Of one head in place.
template <typename W>
void turn(double* x, int64_t token, double sign, int64_t head_dim, const Tables<W>& tables) {
  const int64_t half = head_dim / 2, row = (13 + token) % kTableRows;
  for (int64_t i = 0; i < half; ++i) {
    const double cos = tables.cos[row * half + i], sin = sign * tables.sin[row * half + i], a = x[i];
    x[i] = a * cos - x[half + i] * sin;
    x[half + i] = x[half + i] * cos + a * sin;
  }
}
double inverse_rms(const double* x, int64_t head_dim) {
  double squares = 0;
  for (int64_t i = 0; i < head_dim; ++i) squares += x[i] * x[i] / static_cast<double>(head_dim);
  return 1 / std::sqrt(squares + kEps);
}

// f(first value's index, token, head, the head's norm) for each rotated head.
template <typename W, typename F>
void each_rotated_head(const Case& c, const Tables<W>& tables, const F& f) {
  const std::vector<double> q = tables.q_norm.values(), k = tables.k_norm.values();
  for (int64_t token = 0; token < c.tokens; ++token)
    for (int64_t head = 0; head < kQueries + kKeys; ++head)
      f((token * kHeads + head) * c.head_dim, token, head, head < kQueries ? q : k);
}

template <typename T, typename W>
void forward_equals_fp64(const Case& c, Norms norms) {
  Gpu gpu;
  const int64_t width = kHeads * c.head_dim, stride = width + c.stride, D = c.head_dim;
  const Tables<W> tables(gpu, D);
  const auto from = Rows<T>::random(gpu, c.tokens, width, stride, c.offset, 1);
  const Rows<T> to(gpu, c.tokens, width, stride, c.offset);
  std::vector<double> expected = from.values();
  each_rotated_head(c, tables, [&](int64_t at, int64_t token, int64_t, const std::vector<double>& weight) {
    double* const x = expected.data() + at;
    const double r = norms == Norms::given ? inverse_rms(x, D) : 1;
    for (int64_t i = 0; i < D; ++i) x[i] *= norms == Norms::given ? r * weight[i] : 1;
    turn(x, token, 1, D, tables);
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
  const Tables<W> tables(gpu, D);
  const auto from = Rows<T>::random(gpu, c.tokens, width, stride, c.offset, 1);
  const auto before = Rows<T>::random(gpu, c.tokens, rotated, rotated, 0, 2);
  const Rows<T> to(gpu, c.tokens, width, stride, c.offset);
  const auto dq = Rows<float>::random(gpu, 1, D, 0, 0, 3), dk = Rows<float>::random(gpu, 1, D, 0, 0, 4);
  std::vector<double> expected = from.values(), dq_expected = dq.values(), dk_expected = dk.values();
  const std::vector<double> dq_given = dq_expected, x_all = before.values();
  each_rotated_head(c, tables,
                    [&](int64_t at, int64_t token, int64_t head, const std::vector<double>& weight) {
                      double* const d = expected.data() + at;
                      turn(d, token, -1, D, tables);
                      if (norms == Norms::none) return;
                      const double* x = x_all.data() + token * rotated + head * D;
                      const double r = inverse_rms(x, D);
                      double mean = 0;
                      for (int64_t i = 0; i < D; ++i)
                        mean += d[i] * weight[i] * x[i] * r / static_cast<double>(D);
                      for (int64_t i = 0; i < D; ++i) {
                        (head < kQueries ? dq_expected : dk_expected)[i] += d[i] * x[i] * r;
                        d[i] = r * (d[i] * weight[i] - x[i] * r * mean);
                      }
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
  for (const Case& c : kCases)
    for (const Norms norms : {Norms::none, Norms::given}) {
      SCOPED_TRACE(::testing::Message() << "heads of " << c.head_dim << ", stride " << c.stride << ", offset "
                                        << c.offset << (norms == Norms::given ? ", norms" : ""));
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

// Of bf16 heads in place: one read and one write of the rotated ones, none of the others, the table once.
TEST(PlayedRotary, reads_and_writes_no_more_than_the_fused_ideal_in_accesses_of_16_bytes) {
  Gpu gpu;
  const Case c{.head_dim = 128, .tokens = 10};
  const Tables<Bf16> tables(gpu, c.head_dim);
  const auto x = Rows<Bf16>::random(gpu, c.tokens, kHeads * c.head_dim, kHeads * c.head_dim, 0, 1);
  const int64_t elements = c.tokens * (kQueries + kKeys) * c.head_dim;
  const int64_t table_bytes = 2 * 4 * kTableRows * c.head_dim / 2;
  for (const Norms norms : {Norms::none, Norms::given}) {
    gpu.clear_counts();
    launch_rotary(rotary_of(c, norms, tables, x, x), nullptr);
    const int64_t weights = norms == Norms::given ? 2 * 2 * c.head_dim : 0;
    EXPECT_EQ(gpu.counts().distinct_read_bytes, 2 * elements + table_bytes + weights);
    EXPECT_EQ(gpu.counts().written_bytes, 2 * elements);
    EXPECT_EQ(gpu.counts().writes * 16, gpu.counts().written_bytes);
    EXPECT_EQ(gpu.counts().reads * 16, gpu.counts().read_bytes);
  }
  gpu.clear_counts();
  launch_rotary_backward(rotary_of(c, Norms::none, tables, x, x), nullptr, nullptr, nullptr, nullptr);
  EXPECT_EQ(gpu.counts().distinct_read_bytes, 2 * elements + table_bytes);
  EXPECT_EQ(gpu.counts().written_bytes, 2 * elements);
}

}  // namespace
}  // namespace trireme::played_rotary_test
