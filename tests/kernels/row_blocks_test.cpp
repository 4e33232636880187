// The ATen token operations work on blocks of rows: over the border of two blocks they equal the CPU's fused
// loops, which know none.
#include <gtest/gtest.h>

#include "trireme/kernels/token_ops.h"
#include "trireme/kernels/token_tiles.h"

#include "tests/support/relative_error.h"

namespace trireme::row_blocks_test {
namespace {

using testing::relative_error;

// Three rows, of which a block takes two.
constexpr int64_t kRows = 3, kWidth = kRowBlock_elements / 2;
static_assert(rows_of_block(kWidth) == 2);
// Of sums over millions of values in fp32. A row of another block, or a gradient of one block alone, is off
// by about 1.
constexpr double kTolerance = 1e-3;

// Numbers within [-2, 2] that another `step` makes others; drawing so many at random takes long.
at::Tensor numbers(at::IntArrayRef sizes, double step) {
  return at::arange(c10::multiply_integers(sizes), at::kFloat).mul_(step).sin_().mul_(2).view(sizes);
}

TEST(RowBlocks, norms_cross_their_border) {
  const at::Tensor x = numbers({kRows, kWidth}, 0.17), dy = numbers({kRows, kWidth}, 0.27),
                   w = numbers({kWidth}, 0.37);
  EXPECT_LT(relative_error(aten::rms_norm(x, w, 1e-5, at::kFloat), rms_norm(x, w, 1e-5, at::kFloat)),
            kTolerance);
  at::Tensor dx = x.clone(), dw = w.clone(), fused_dx = x.clone(), fused_dw = w.clone();
  aten::rms_norm_backward(dy, x, w, 1e-5, dx, dw);
  rms_norm_backward(dy, x, w, 1e-5, fused_dx, fused_dw);
  EXPECT_LT(relative_error(dx, fused_dx), kTolerance);
  EXPECT_LT(relative_error(dw, fused_dw), kTolerance);
}

TEST(RowBlocks, rotation_crosses_their_border_with_the_positions_of_its_rows) {
  constexpr int64_t kHeads = 3,
                    kHeadWidth = kWidth / 2;  // one query head, one key head, and one that is copied
  RotaryHeads rotary;
  rotary.query_heads = 1;
  rotary.rotated_heads = 2;
  const at::Tensor angle = numbers({5, kHeadWidth / 2}, 0.47);
  rotary.cos = at::cos(angle);
  rotary.sin = at::sin(angle);
  rotary.first_row = 4;  // then 0 and 1
  rotary.norm_eps = 1e-5;
  rotary.q_norm = numbers({kHeadWidth}, 0.57);
  rotary.k_norm = numbers({kHeadWidth}, 0.67);
  const at::Tensor x = numbers({kRows, kHeads, kHeadWidth}, 0.77),
                   before = numbers({kRows, 2, kHeadWidth}, 0.87);
  const at::Tensor y = at::empty_like(x), fused = at::empty_like(x);
  aten::rotate_heads(x, rotary, y);
  rotate_heads(x, rotary, fused);
  EXPECT_LT(relative_error(y, fused), kTolerance);

  at::Tensor dq = at::zeros({kHeadWidth}), dk = dq.clone(), fused_dq = dq.clone(), fused_dk = dq.clone();
  aten::rotate_heads_backward(x, rotary, before, y, dq, dk);
  rotate_heads_backward(x, rotary, before, fused, fused_dq, fused_dk);
  EXPECT_LT(relative_error(y, fused), kTolerance);
  EXPECT_LT(relative_error(dq, fused_dq), kTolerance);
  EXPECT_LT(relative_error(dk, fused_dk), kTolerance);
}

TEST(RowBlocks, gated_units_cross_their_border) {
  const at::Tensor gate_up = numbers({kRows, 2 * kWidth}, 0.97), dact = numbers({kRows, kWidth}, 0.107);
  for (const GluGate gate : {GluGate::silu, GluGate::gelu_tanh}) {
    EXPECT_LT(relative_error(aten::glu(gate, gate_up), glu(gate, gate_up)), kTolerance);
    at::Tensor d = gate_up.clone(), fused_d = gate_up.clone();
    EXPECT_LT(relative_error(aten::glu_backward(gate, dact, d), glu_backward(gate, dact, fused_d)),
              kTolerance);
    EXPECT_LT(relative_error(d, fused_d), kTolerance);
  }
}

TEST(RowBlocks, cross_entropy_crosses_their_border) {
  const at::Tensor targets = at::tensor({7, -100, int(kWidth) - 1}, at::kLong);
  at::Tensor d = numbers({kRows, kWidth}, 0.117), fused_d = d.clone();
  at::Tensor loss = at::empty({kRows}), fused_loss = at::empty({kRows});
  aten::cross_entropy(d, targets, loss, 0.5);
  cross_entropy(fused_d, targets, fused_loss, 0.5);
  EXPECT_LT(relative_error(loss, fused_loss), kTolerance);
  EXPECT_LT(relative_error(d, fused_d), kTolerance);
}

}  // namespace
}  // namespace trireme::row_blocks_test
