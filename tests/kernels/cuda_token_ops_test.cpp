// The token-wise operations' kernels on a GPU against the ATen versions in fp64 on the CPU; the same bits
// again when run again. Skipped where there is no GPU. (What they compute is also played on the host:
// played_norm_test.cpp, played_rotary_test.cpp.)
#include <gtest/gtest.h>

#include "trireme/kernels/token_ops_gpu.h"

#include "tests/support/device_under_test.h"

namespace trireme::cuda_token_ops_test {
namespace {

class CudaTokenOps : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    if (!testing::device_under_test()) GTEST_SKIP() << "no GPU here";
    at::manual_seed(7);
  }
  static at::Tensor random(at::IntArrayRef shape, at::ScalarType dtype = GetParam()) {
    return at::randn(shape).to(dtype).to(*testing::device_under_test());
  }
  // Rows that lie `gap` elements apart.
  static at::Tensor random_rows(int64_t rows, int64_t width, int64_t gap) {
    return random({rows, width + gap}).narrow(1, 0, width);
  }
  static at::Tensor fp64(const at::Tensor& x) { return x.to(at::kCPU).to(at::kDouble); }
  static double worst(const at::Tensor& got, const at::Tensor& expected) {
    const at::Tensor x = fp64(got), y = fp64(expected);
    return (x - y).abs().max().item<double>() / std::max(1e-12, y.abs().max().item<double>());
  }
  static double tolerance(at::ScalarType dtype = GetParam()) {
    return dtype == at::kBFloat16 ? 8e-3 : dtype == at::kHalf ? 1e-3 : 4e-6;
  }
  struct Size {
    int64_t rows, width, gap;
  };
  static constexpr Size kSizes[] = {{1, 1, 0},     {7, 48, 0},     {333, 1027, 5}, {2000, 4096, 0},
                                    {40, 8192, 8}, {300, 2560, 3}, {9, 12289, 0},  {200, 16384, 0}};
};

TEST_P(CudaTokenOps, norms_equal_fp64) {
  for (const Size& size : kSizes) {
    SCOPED_TRACE(::testing::Message() << size.rows << " x " << size.width << " + " << size.gap);
    const at::Tensor x = random_rows(size.rows, size.width, size.gap), w = random({size.width}),
                     b = random({size.width});
    const auto y = gpu::rms_norm(x, w, 1e-5, GetParam()), z = gpu::layer_norm(x, w, b, 1e-5, GetParam());
    ASSERT_TRUE(y && z);
    EXPECT_LT(worst(*y, aten::rms_norm(fp64(x), fp64(w), 1e-5, at::kDouble)), tolerance());
    EXPECT_LT(worst(*z, aten::layer_norm(fp64(x), fp64(w), fp64(b), 1e-5, at::kDouble)), tolerance());
  }
}

TEST_P(CudaTokenOps, norms_that_add_1_give_the_bits_of_fp32_weights_with_1_in_them) {
  for (const Size& size : kSizes) {
    SCOPED_TRACE(::testing::Message() << size.rows << " x " << size.width);
    const at::Tensor x = random({size.rows, size.width}), dy = random({size.rows, size.width}),
                     w = random({size.width}), added = w.to(at::kFloat) + 1;
    EXPECT_TRUE(
        at::equal(*gpu::rms_norm(x, w, 1e-5, GetParam(), true), *gpu::rms_norm(x, added, 1e-5, GetParam())));
    at::Tensor dx = at::zeros_like(x), dx2 = dx.clone(), dw = at::zeros_like(added), dw2 = dw.clone();
    EXPECT_TRUE(gpu::rms_norm_backward(dy, x, w, 1e-5, dx, dw, true));
    EXPECT_TRUE(gpu::rms_norm_backward(dy, x, added, 1e-5, dx2, dw2));
    EXPECT_TRUE(at::equal(dx, dx2) && at::equal(dw, dw2));
  }
}

TEST_P(CudaTokenOps, norms_backward_equal_fp64_add_and_repeat_their_bits) {
  for (const Size& size : kSizes) {
    SCOPED_TRACE(::testing::Message() << size.rows << " x " << size.width << " + " << size.gap);
    const at::Tensor x = random_rows(size.rows, size.width, size.gap), w = random({size.width}),
                     dy = random({size.rows, size.width}), dx = random_rows(size.rows, size.width, size.gap),
                     dw = random({size.width}, at::kFloat), db = random({size.width}, at::kFloat);
    const auto check_rms = [&] {
      at::Tensor dx2 = dx.clone(), dw2 = dw.clone();
      EXPECT_TRUE(gpu::rms_norm_backward(dy, x, w, 1e-5, dx2, dw2));
      return std::make_pair(dx2, dw2);
    };
    const auto [dx2, dw2] = check_rms();
    at::Tensor dx_expected = fp64(dx), dw_expected = fp64(dw), db_expected = fp64(db);
    aten::rms_norm_backward(fp64(dy), fp64(x), fp64(w), 1e-5, dx_expected, dw_expected);
    EXPECT_LT(worst(dx2, dx_expected), tolerance());
    EXPECT_LT(worst(dw2, dw_expected), 1e-5);
    const auto [dx3, dw3] = check_rms();
    EXPECT_TRUE(at::equal(dx2, dx3) && at::equal(dw2, dw3));

    at::Tensor dw4 = dw.clone(), db4 = db.clone();
    dw_expected = fp64(dw);
    const auto dx4 = gpu::layer_norm_backward(dy, x, w, 1e-5, GetParam(), dw4, db4);
    ASSERT_TRUE(dx4);
    const at::Tensor dx4_expected =
        aten::layer_norm_backward(fp64(dy), fp64(x), fp64(w), 1e-5, at::kDouble, dw_expected, db_expected);
    // Of one column what is subtracted leaves nothing.
    if (size.width > 1) {
      EXPECT_LT(worst(*dx4, dx4_expected), tolerance());
    }
    EXPECT_LT(worst(dw4, dw_expected), 1e-5);
    EXPECT_LT(worst(db4, db_expected), 1e-5);
  }
}

struct Heads {
  int64_t tokens, queries, keys, head_dim;
  int64_t turning_pairs = head_dim / 2;
};

RotaryHeads rotary_heads(const Heads& heads, bool norms, const at::Tensor& like, at::ScalarType dtype) {
  RotaryHeads rotary;
  rotary.query_heads = heads.queries;
  rotary.rotated_heads = heads.queries + heads.keys;
  rotary.turning_pairs = heads.turning_pairs;
  const at::Tensor angle = at::randn({29, heads.turning_pairs});
  rotary.cos = at::cos(angle).to(like.device());
  rotary.sin = at::sin(angle).to(like.device());
  rotary.first_row = 13;
  rotary.norm_eps = 1e-5;
  if (norms) {
    rotary.q_norm = at::randn({heads.head_dim}).to(dtype).to(like.device());
    rotary.k_norm = at::randn({heads.head_dim}).to(dtype).to(like.device());
  }
  return rotary;
}

TEST_P(CudaTokenOps, rotation_equals_fp64_both_ways_in_place_too) {
  for (const Heads heads :
       {Heads{1, 1, 1, 2}, Heads{50, 3, 1, 6}, Heads{700, 32, 8, 128}, Heads{65, 12, 4, 80},
        Heads{33, 4, 4, 512}, Heads{700, 16, 4, 256, 32}, Heads{65, 12, 4, 96, 3}})
    for (const bool norms : {false, true}) {
      SCOPED_TRACE(::testing::Message()
                   << heads.tokens << " tokens, " << heads.turning_pairs << " pairs of heads of "
                   << heads.head_dim << (norms ? ", norms" : ""));
      const int64_t D = heads.head_dim, R = heads.queries + heads.keys;
      const at::Tensor x = random({heads.tokens, R + heads.keys, D}), before = random({heads.tokens, R, D});
      const RotaryHeads rotary = rotary_heads(heads, norms, x, GetParam());
      RotaryHeads wide = rotary;
      wide.cos = fp64(rotary.cos);
      wide.sin = fp64(rotary.sin);
      if (norms) {
        wide.q_norm = fp64(rotary.q_norm);
        wide.k_norm = fp64(rotary.k_norm);
      }
      const at::Tensor y = at::empty_like(x), in_place = x.clone(), expected = fp64(x).clone();
      ASSERT_TRUE(gpu::rotate_heads(x, rotary, y));
      aten::rotate_heads(fp64(x), wide, expected);
      EXPECT_LT(worst(y, expected), tolerance());
      ASSERT_TRUE(gpu::rotate_heads(in_place, rotary, in_place));
      EXPECT_TRUE(at::equal(in_place, y));

      at::Tensor dq = random({D}, at::kFloat), dk = random({D}, at::kFloat);
      at::Tensor dq_expected = fp64(dq), dk_expected = fp64(dk);
      ASSERT_TRUE(gpu::rotate_heads_backward(x, rotary, before, y, dq, dk));
      aten::rotate_heads_backward(fp64(x), wide, fp64(before), expected, dq_expected, dk_expected);
      EXPECT_LT(worst(y, expected), tolerance());
      EXPECT_LT(worst(dq, dq_expected), 1e-5);
      EXPECT_LT(worst(dk, dk_expected), 1e-5);
    }
}

INSTANTIATE_TEST_SUITE_P(Formats, CudaTokenOps, ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& info) { return std::string(at::toString(info.param)); });

// fp64 is ATen's, as are rows of two formats.
TEST(CudaTokenOpsFormats, what_kernels_do_not_take_is_atens) {
  const auto device = testing::device_under_test();
  if (!device) GTEST_SKIP() << "no GPU here";
  const at::Tensor x = at::randn({4, 16}).to(*device), w = at::randn({16}).to(*device);
  EXPECT_FALSE(gpu::rms_norm(x.to(at::kDouble), w, 1e-5, at::kDouble));
  EXPECT_FALSE(gpu::rms_norm(x, w, 1e-5, at::kHalf));
  EXPECT_TRUE(at::equal(rms_norm(x, w, 1e-5, at::kHalf), aten::rms_norm(x, w, 1e-5, at::kHalf)));
}

}  // namespace
}  // namespace trireme::cuda_token_ops_test
