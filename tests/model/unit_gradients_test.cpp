// A unit's gradients begin undefined: every law here starts from NaN.
#include "trireme/model/unit_gradients.h"

#include <gtest/gtest.h>

#include "trireme/model/unit_weights.h"

#include "tests/support/relative_error.h"

namespace trireme::unit_gradients_test {
namespace {

using testing::relative_error;

enum Slot : size_t { kMatrix, kBias, kAbsent, kNorm, kSlots };
constexpr int64_t kRows = 3, kColumns = 5, kTokens = 7;

// Elements lie between all three tensors, and behind the last: slots are not in the order of offsets.
UnitSpec unit() {
  UnitSpec spec{.name = "layer.0", .parameters = {}, .elements = 64, .tensors = {}};
  spec.tensors.resize(kSlots);
  spec.tensors[kMatrix] = {16, kRows, kColumns};
  spec.tensors[kBias] = {48, kRows, 0};
  spec.tensors[kNorm] = {0, 4, 0};
  return spec;
}

at::Tensor undefined_values() {
  return at::full({64}, std::nan(""));
}

struct Tile {
  at::Tensor dy = at::randn({kTokens, kRows}), x = at::randn({kTokens, kColumns});
  at::Tensor matrix() const { return at::mm(dy.to(at::kDouble).t(), x.to(at::kDouble)); }
  at::Tensor bias() const { return dy.to(at::kDouble).sum(0); }
};

TEST(UnitGradients, the_first_product_is_written_and_the_others_are_added) {
  const at::Tensor flat = undefined_values();
  const Tile first, second;
  UnitGradients gradients(flat, unit(), SumState::undefined);
  gradients.add_linear(kMatrix, kBias, first.dy, first.x);
  gradients.add_linear(kMatrix, kBias, second.dy, second.x);
  gradients.to_add(kNorm).add_(1);
  gradients.to_add(kNorm).add_(2);
  gradients.finish();
  const UnitWeights sums = bind_weights(flat, unit());
  EXPECT_LT(relative_error(sums[kMatrix], first.matrix() + second.matrix()), 1e-5);
  EXPECT_LT(relative_error(sums[kBias], first.bias() + second.bias()), 1e-5);
  EXPECT_TRUE(sums[kNorm].eq(3).all().item<bool>());
  EXPECT_FALSE(gradients.to_add(kAbsent).defined());
}

TEST(UnitGradients, what_nothing_was_added_to_is_zero_in_the_end_and_so_is_what_lies_between) {
  const at::Tensor flat = undefined_values();
  const Tile tile;
  UnitGradients gradients(flat, unit(), SumState::undefined);
  gradients.add_linear(kMatrix, std::nullopt, tile.dy, tile.x);
  gradients.finish();
  at::Tensor expected = at::zeros({64}, at::kDouble);
  expected.narrow(0, 16, kRows * kColumns).view({kRows, kColumns}).copy_(tile.matrix());
  EXPECT_LT(relative_error(flat, expected), 1e-5);
}

TEST(UnitGradients, sums_that_have_begun_are_kept) {
  const at::Tensor flat = at::ones({64});
  const Tile tile;
  UnitGradients gradients(flat, unit(), SumState::begun);
  gradients.add_linear(kMatrix, kBias, tile.dy, tile.x);
  gradients.finish();
  const UnitWeights sums = bind_weights(flat, unit());
  EXPECT_LT(relative_error(sums[kMatrix], tile.matrix() + 1), 1e-5);
  EXPECT_LT(relative_error(sums[kBias], tile.bias() + 1), 1e-5);
  EXPECT_TRUE(sums[kNorm].eq(1).all().item<bool>());
}

TEST(UnitGradients, a_matrix_that_is_lent_comes_back_begun) {
  const at::Tensor flat = undefined_values();
  const Tile tile;
  UnitGradients owner(flat, unit(), SumState::undefined),
      borrower(undefined_values(), unit(), SumState::undefined);
  borrower.exchange(kAbsent, owner, kMatrix);
  EXPECT_FALSE(owner.to_add(kMatrix).defined());
  borrower.add_linear(kAbsent, kBias, tile.dy, tile.x);
  borrower.exchange(kAbsent, owner, kMatrix);
  owner.add_linear(kMatrix, std::nullopt, tile.dy, tile.x);
  owner.finish();
  EXPECT_LT(relative_error(bind_weights(flat, unit())[kMatrix], tile.matrix() * 2), 1e-5);
}

}  // namespace
}  // namespace trireme::unit_gradients_test
