// A linear layer's products against fp64, for odd sizes and for rows and columns that lie apart.
#include "trireme/kernels/linear.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "trireme/device/cpu_caching_allocator.h"
#include "trireme/device/memory_account.h"
#include "trireme/kernels/cpu_weight_gradient.h"
#include "trireme/kernels/product.h"

#include "tests/support/relative_error.h"

namespace trireme::testing {
namespace {

struct Sizes {
  int64_t tokens, k, n;
};
constexpr Sizes kSizes[] = {{1, 1, 1},     {33, 70, 45},    {130, 64, 128},
                            {515, 96, 65}, {1090, 33, 200}, {700, 88, 200}};

at::Tensor random(int64_t rows, int64_t columns, at::ScalarType dtype, int64_t gap = 0) {
  return at::randn({rows, columns + gap}).to(dtype).narrow(1, 0, columns);
}

at::Tensor exact(const at::Tensor& a, const at::Tensor& b) {
  return at::mm(a.to(at::kDouble), b.to(at::kDouble));
}

TEST(Product, of_fp32_is_exact_to_its_precision_in_whatever_library) {
  for (const auto& [tokens, k, n] : kSizes)
    for (const int64_t gap : {0, 3}) {
      const at::Tensor x = random(tokens, k, at::kFloat, gap), weight = random(n, k, at::kFloat, gap);
      const at::Tensor dy = random(tokens, n, at::kFloat, gap);
      EXPECT_LT(relative_error(product(x, weight.t()), exact(x, weight.t())), 1e-5);
      EXPECT_LT(relative_error(product(dy, weight), exact(dy, weight)), 1e-5);
      const at::Tensor sum = random(n, k, at::kFloat), before = sum.to(at::kDouble);
      add_product(sum, dy.t(), x);
      EXPECT_LT(relative_error(sum, before + exact(dy.t(), x)), 1e-5);
      // Whatever lay there before, NaN too.
      at::Tensor out = at::full({tokens, n}, std::nan(""));
      product_into(out, x, weight.t());
      EXPECT_LT(relative_error(out, exact(x, weight.t())), 1e-5);
    }
}

// As LoRA's products with the gradient of one of the parameters that lie in a matrix side by side.
TEST(Product, of_fp32_with_few_columns_copies_no_slice) {
  install_cpu_caching_allocator();
  const at::Tensor slice = at::randn({512, 1024}).narrow(1, 0, 512), few = at::randn({512, 24});
  const at::Tensor out = at::empty({512, 24}), sum = at::zeros({512, 24});
  const auto account = std::make_shared<MemoryAccount>();
  const MemoryScope scope(account, MemoryCategory::other);
  product_into(out, slice, few);
  add_product(sum, slice.t(), few);
  EXPECT_LT(account->state().peak_total_bytes, slice.numel());
}

TEST(WeightGradient, of_16_bits_is_summed_in_fp32) {
  for (const auto& [tokens, k, n] : kSizes)
    for (const int64_t gap : {0, 5}) {
      const at::Tensor x = random(tokens, k, at::kBFloat16, gap), dy = random(tokens, n, at::kBFloat16, gap);
      at::Tensor gradient = at::full({n, k}, std::nan("")), no_bias;
      add_linear_gradient(gradient, no_bias, dy, x, SumState::undefined);
      add_linear_gradient(gradient, no_bias, dy.neg(), x.mul(0.5), SumState::begun);
      // A processor without such units has libtorch's product, which is rounded.
      const double bound = processor_bf16_units() ? 1e-5 : 1e-2;
      EXPECT_LT(relative_error(gradient, exact(dy.t(), x) * 0.5), bound) << tokens << " " << k << " " << n;
    }
}

TEST(WeightGradient, in_blocks_is_exact_with_plain_loops_too) {
  for (const auto& [tokens, k, n] : kSizes) {
    const at::Tensor x = random(tokens, k, at::kBFloat16), dy = random(tokens, n, at::kBFloat16);
    const at::Tensor gradient = random(n, k, at::kFloat), before = gradient.to(at::kDouble);
    add_weight_gradient(gradient, dy, x, SumState::begun, Bf16Units::loops);
    EXPECT_LT(relative_error(gradient, before + exact(dy.t(), x)), 1e-5) << tokens << " " << k << " " << n;
    gradient.fill_(std::nan(""));
    add_weight_gradient(gradient, dy, x, SumState::undefined, Bf16Units::loops);
    EXPECT_LT(relative_error(gradient, exact(dy.t(), x)), 1e-5) << tokens << " " << k << " " << n;
  }
}

TEST(WeightGradient, has_the_same_bits_with_any_number_of_threads) {
  const Bf16Units units = processor_bf16_units().value_or(Bf16Units::loops);
  const at::Tensor x = random(700, 96, at::kBFloat16), dy = random(700, 333, at::kBFloat16);
  const int before = at::get_num_threads();
  at::Tensor first;
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    const at::Tensor gradient = at::empty({333, 96});
    add_weight_gradient(gradient, dy, x, SumState::undefined, units);
    if (!first.defined()) first = gradient;
    EXPECT_TRUE(at::equal(gradient, first)) << threads;
  }
  at::set_num_threads(before);
}

}  // namespace
}  // namespace trireme::testing
