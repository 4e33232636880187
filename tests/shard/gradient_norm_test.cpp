// The norm that clipping reads, of tensors so long that sums in fp32 lose their small terms.
#include <gtest/gtest.h>

#include "trireme/shard/gradient_store.h"

namespace trireme {
namespace {

TEST(GradientNorm, counts_every_small_term_beside_large_ones) {
  // 64 ones first, so that every lane of a vector sum begins at 1 or more; then terms that fp32 would drop
  // there.
  const int64_t small_terms = (int64_t{1} << 23) + 5;
  at::Tensor values = at::full({64 + small_terms}, 1e-4);
  values.narrow(0, 0, 64).fill_(1);
  const double term = static_cast<double>(1e-4F) * static_cast<double>(1e-4F);
  const double expected = 64 + static_cast<double>(small_terms) * term;
  EXPECT_NEAR(sum_of_squares(values).item<double>() / expected, 1, 1e-6);
}

TEST(GradientNorm, is_that_of_any_length) {
  EXPECT_EQ(sum_of_squares(at::empty({0})).item<double>(), 0);
  for (const int64_t length : {1, 4095, 4096, 4097, 10000})
    EXPECT_NEAR(sum_of_squares(at::full({length}, 2.0)).item<double>() / static_cast<double>(4 * length), 1,
                1e-6)
        << length;
}

}  // namespace
}  // namespace trireme
