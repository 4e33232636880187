// The norms' kernels, played on the host, against fp64: widths that chunks, warps and registers do not
// divide, rows that lie apart; their sums' order; the bytes that they read and write.
#include <gtest/gtest.h>

#include "trireme/kernels/norm_kernel.h"

#include "tests/kernels/played_rows.h"

namespace trireme::played_norm_test {
namespace {

using played::Gpu;
using played::Rows;
using played::worst;

struct Case {
  NormKind kind = NormKind::rms;
  int64_t rows = 5, width = 40, stride = 40, offset = 0;
  int multiprocessors = 1;
  bool adds_one = false;
};

// Chunks of 8 values, 256 threads of one, 512 of two, and beyond.
const std::vector<Case> kCases = {
    {.width = 1, .stride = 1},
    {.width = 7, .stride = 7},
    {.width = 40},
    {.width = 40, .stride = 43},
    {.width = 40, .stride = 48, .offset = 3},
    {.rows = 61, .width = 256, .stride = 264, .multiprocessors = 2},
    {.rows = 3, .width = 261, .stride = 264},
    {.rows = 2, .width = 2048, .stride = 2048},
    {.rows = 2, .width = 2056, .stride = 2056},
    {.rows = 2, .width = 2063, .stride = 2064},
    {.rows = 2, .width = 8192, .stride = 8192},
    {.rows = 5, .width = 8200, .stride = 8200, .multiprocessors = 2},
    {.rows = 2, .width = 8203, .stride = 8204},
    {.width = 40, .adds_one = true},
    {.rows = 2, .width = 2056, .stride = 2056, .adds_one = true},
    {.rows = 2, .width = 8200, .stride = 8200, .adds_one = true},
};

constexpr float kEps = 1e-5F;

template <typename T, typename W>
NormKernel norm_of(const Case& c, const Rows<T>& x, const Rows<W>& weight, const Rows<W>& bias) {
  return {.kind = c.kind,
          .number = played::number_of<T>(),
          .rows = c.rows,
          .width = c.width,
          .x = x.rows(),
          .weight = weight.data(),
          .bias = c.kind == NormKind::layer ? bias.data() : nullptr,
          .weight_number = played::number_of<W>(),
          .adds_one = c.adds_one,
          .eps = kEps,
          .multiprocessors = c.multiprocessors};
}

template <typename W>
std::vector<double> factors_of(const Case& c, const Rows<W>& weight) {
  std::vector<double> factors = weight.values();
  for (double& factor : factors) factor += c.adds_one ? 1 : 0;
  return factors;
}

// One row in fp64.
struct RowOracle {
  std::vector<double> hat;
  double r = 0;
  RowOracle(const double* x, int64_t width, NormKind kind) {
    double mean = 0, squares = 0;
    const auto M = static_cast<double>(width);
    if (kind == NormKind::layer)
      for (int64_t i = 0; i < width; ++i) mean += x[i] / M;
    for (int64_t i = 0; i < width; ++i) squares += (x[i] - mean) * (x[i] - mean) / M;
    r = 1 / std::sqrt(squares + kEps);
    for (int64_t i = 0; i < width; ++i) hat.push_back((x[i] - mean) * r);
  }
};

template <typename T, typename W>
void forward_equals_fp64(Case c) {
  Gpu gpu;
  const auto x = Rows<T>::random(gpu, c.rows, c.width, c.stride, c.offset, 1);
  const auto weight = Rows<W>::random(gpu, 1, c.width, 0, 0, 2),
             bias = Rows<W>::random(gpu, 1, c.width, 0, 0, 3);
  const Rows<T> y(gpu, c.rows, c.width, c.width);
  launch_norm(norm_of(c, x, weight, bias), y.rows(), nullptr);
  const auto from = x.values(), w = factors_of(c, weight), b = bias.values();
  std::vector<double> expected;
  for (int64_t row = 0; row < c.rows; ++row) {
    const RowOracle oracle(from.data() + row * c.width, c.width, c.kind);
    for (int64_t i = 0; i < c.width; ++i)
      expected.push_back(oracle.hat[i] * w[i] + (c.kind == NormKind::layer ? b[i] : 0));
  }
  EXPECT_LT(worst(y.values(), expected), 1e-6 + played::rounding_of<T>() / 2);
}

template <typename T, typename W>
void backward_equals_fp64(const Case& c) {
  Gpu gpu;
  const bool layer = c.kind == NormKind::layer;
  const auto x = Rows<T>::random(gpu, c.rows, c.width, c.stride, c.offset, 1);
  const auto dy = Rows<T>::random(gpu, c.rows, c.width, c.width, 0, 4);
  const auto weight = Rows<W>::random(gpu, 1, c.width, 0, 0, 2),
             bias = Rows<W>::random(gpu, 1, c.width, 0, 0, 3);
  const auto dweight = Rows<float>::random(gpu, 1, c.width, 0, 0, 5),
             dbias = Rows<float>::random(gpu, 1, c.width, 0, 0, 6);
  // A LayerNorm must not read what it writes.
  const auto dx = layer ? Rows<T>(gpu, c.rows, c.width, c.stride, c.offset)
                        : Rows<T>::random(gpu, c.rows, c.width, c.stride, c.offset, 7);
  const std::vector<double> given = layer ? std::vector<double>(c.rows * c.width, 0.0) : dx.values();
  std::vector<double> dw = dweight.values(), db = dbias.values(), expected;
  const NormKernel norm = norm_of(c, x, weight, bias);
  const auto partial = gpu.array<float>(norm_backward_blocks(norm.rows, norm.width, norm.multiprocessors) *
                                        c.width * (layer ? 2 : 1));
  launch_norm_backward(norm, dy.rows(), dx.rows(), partial.data(), dweight.data(), dbias.data(), nullptr);

  const auto from = x.values(), d = dy.values(), w = factors_of(c, weight);
  const auto M = static_cast<double>(c.width);
  for (int64_t row = 0; row < c.rows; ++row) {
    const RowOracle oracle(from.data() + row * c.width, c.width, c.kind);
    double mean = 0, mean_product = 0;
    for (int64_t i = 0; i < c.width; ++i) {
      const double g = d[row * c.width + i] * w[i];
      mean += layer ? g / M : 0;
      mean_product += g * oracle.hat[i] / M;
    }
    for (int64_t i = 0; i < c.width; ++i) {
      const double dy_i = d[row * c.width + i];
      dw[i] += dy_i * oracle.hat[i];
      db[i] += layer ? dy_i : 0;
      expected.push_back(given[row * c.width + i] +
                         oracle.r * (dy_i * w[i] - mean - oracle.hat[i] * mean_product));
    }
  }
  EXPECT_LT(worst(dx.values(), expected), 2e-6 + played::rounding_of<T>() / 2);
  EXPECT_LT(worst(dweight.values(), dw), 2e-6);
  EXPECT_LT(worst(dbias.values(), db), 2e-6);
}

template <typename F>
void for_cases(const F& body) {
  for (Case c : kCases)
    for (const NormKind kind : {NormKind::rms, NormKind::layer}) {
      c.kind = kind;
      SCOPED_TRACE(::testing::Message() << (kind == NormKind::rms ? "RMS norm of " : "LayerNorm of ")
                                        << c.rows << " rows of " << c.width << ", stride " << c.stride
                                        << ", offset " << c.offset << (c.adds_one ? ", 1 added" : ""));
      body(c);
    }
}

TEST(PlayedNorm, forward_equals_fp64) {
  for_cases([](const Case& c) {
    // Of wide rows one format is enough.
    const bool wide = c.width > 2000, odd = c.width % kChunk != 0;
    if (!wide || odd) forward_equals_fp64<float, float>(c);
    if (!wide || !odd) forward_equals_fp64<Bf16, Bf16>(c);
    if (!wide) forward_equals_fp64<Fp16, float>(c);
  });
}

TEST(PlayedNorm, backward_equals_fp64_and_adds) {
  for_cases([](const Case& c) {
    // Of wide rows one format is enough.
    const bool wide = c.width > 2000, odd = c.width % kChunk != 0;
    if (!wide || odd) backward_equals_fp64<float, float>(c);
    if (!wide || !odd) backward_equals_fp64<Bf16, Bf16>(c);
    if (!wide) backward_equals_fp64<Fp16, float>(c);
  });
}

// Of weights in bf16.
TEST(PlayedNorm, adding_1_gives_the_bits_of_fp32_weights_with_1_in_them) {
  for (const int64_t width : {40, 2056, 8200}) {
    SCOPED_TRACE(width);
    Case c{.rows = 3, .width = width, .stride = width};
    Gpu gpu;
    const auto x = Rows<Bf16>::random(gpu, c.rows, width, width, 0, 1),
               dy = Rows<Bf16>::random(gpu, c.rows, width, width, 0, 2);
    const auto weight = Rows<Bf16>::random(gpu, 1, width, 0, 0, 3);
    std::vector<float> added;
    for (const double w : weight.values()) added.push_back(static_cast<float>(w) + 1);
    const auto added_weight = gpu.array(added);
    const auto run = [&](const NormKernel& norm) {
      const Rows<Bf16> y(gpu, c.rows, width, width);
      const auto dx = Rows<Bf16>::random(gpu, c.rows, width, width, 0, 4);
      const auto dweight = Rows<float>::random(gpu, 1, width, 0, 0, 5);
      const auto partial =
          gpu.array<float>(norm_backward_blocks(norm.rows, norm.width, norm.multiprocessors) * width);
      launch_norm(norm, y.rows(), nullptr);
      launch_norm_backward(norm, dy.rows(), dx.rows(), partial.data(), dweight.data(), nullptr, nullptr);
      return std::vector{y.values(), dx.values(), dweight.values()};
    };
    NormKernel given = norm_of(c, x, weight, weight);
    given.weight = added_weight.data();
    given.weight_number = GpuNumber::fp32;
    c.adds_one = true;
    EXPECT_EQ(run(norm_of(c, x, weight, weight)), run(given));
  }
}

// Rows of a large mean: what is left of x^2 - mean^2 would be rounding.
TEST(PlayedNorm, layer_norm_keeps_the_variance_beside_a_large_mean) {
  Gpu gpu;
  std::vector<float> values(64);
  for (size_t i = 0; i < values.size(); ++i) values[i] = 1000.0F + static_cast<float>(i % 2);
  const auto x = gpu.array(values), weight = gpu.array(std::vector<float>(64, 1)),
             bias = gpu.array(std::vector<float>(64, 0)), y = gpu.array<float>(64);
  NormKernel norm;
  norm.kind = NormKind::layer;
  norm.rows = 1;
  norm.width = 64;
  norm.x = {x.data(), 64};
  norm.weight = weight.data();
  norm.bias = bias.data();
  norm.multiprocessors = 1;
  launch_norm(norm, {y.data(), 64}, nullptr);
  for (size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(y.values()[i], i % 2 == 0 ? -1 : 1, 1e-6);
}

// Of bf16 rows: an RMS norm reads x and writes y; its backward reads dy, x and dx and writes dx. Beside those
// the weights once, and sums of their gradients once for each block.
TEST(PlayedNorm, reads_and_writes_no_more_than_the_fused_ideal_in_accesses_of_16_bytes) {
  for (const int64_t width : {1024, 4096, 8704}) {
    SCOPED_TRACE(width);
    constexpr int64_t kRows = 10;
    const Case c{.rows = kRows, .width = width, .stride = width};
    Gpu gpu;
    const auto x = Rows<Bf16>::random(gpu, kRows, width, width, 0, 1);
    const auto weight = Rows<Bf16>::random(gpu, 1, width, 0, 0, 2);
    const auto dweight = Rows<float>::random(gpu, 1, width, 0, 0, 5);
    const Rows<Bf16> y(gpu, kRows, width, width);
    const NormKernel norm = norm_of(c, x, weight, weight);
    const int64_t elements = kRows * width;

    launch_norm(norm, y.rows(), nullptr);
    EXPECT_EQ(gpu.counts().distinct_read_bytes, 2 * elements + 2 * width);
    EXPECT_EQ(gpu.counts().distinct_written_bytes, 2 * elements);
    EXPECT_EQ(gpu.counts().writes, 2 * elements / 16);
    EXPECT_EQ(gpu.counts().reads * 16, gpu.counts().read_bytes);
    if (width <= 8192) {  // each row from memory once, the weights once a block
      EXPECT_LE(gpu.counts().read_bytes, 2 * elements + 2 * width * 8);
    }

    gpu.clear_counts();
    const int64_t blocks = norm_backward_blocks(norm.rows, norm.width, norm.multiprocessors);
    const auto partial = gpu.array<float>(blocks * width);
    const auto gradient = Rows<Bf16>::random(gpu, kRows, width, width, 0, 3);
    const auto into = Rows<Bf16>::random(gpu, kRows, width, width, 0, 4);
    launch_norm_backward(norm, gradient.rows(), into.rows(), partial.data(), dweight.data(), nullptr,
                         nullptr);
    EXPECT_LE(gpu.counts().distinct_read_bytes, 6 * elements + 2 * width + 4 * (2 * blocks + 1) * width);
    EXPECT_EQ(gpu.counts().distinct_written_bytes, 2 * elements + 4 * (blocks + 1) * width);
    if (width <= 8192) {
      EXPECT_EQ(gpu.counts().read_bytes, 6 * elements + 2 * width * blocks + 4 * (blocks + 1) * width);
    }
  }
}

TEST(PlayedNorm, nothing_to_do_is_no_launch) {
  Gpu gpu;
  NormKernel norm;
  norm.width = 8;
  norm.multiprocessors = 1;
  EXPECT_NO_THROW(launch_norm(norm, {}, nullptr));
  EXPECT_NO_THROW(launch_norm_backward(norm, {}, {}, nullptr, nullptr, nullptr, nullptr));
  EXPECT_EQ(gpu.counts().launches, 0);
}

}  // namespace
}  // namespace trireme::played_norm_test
