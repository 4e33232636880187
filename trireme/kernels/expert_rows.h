// The rows that the experts of a mixture multiply: a row for each choice of a token, those of one expert side
// by side, and the products over them.
//
//   experts_Tk -> rows_by_expert -> gather: x_TM -> x_RM -> products by each expert's weight -> y_RM
//              -> sum_of_rows: y_TM, in fp32, each token's k rows in the order of its choices
//
// T tokens of a tile, k choices a token, R = T k rows, E experts. Every expert that has rows makes a product
// of its own, in linear.h's arithmetic: sums of weight gradients are fp32 on any device. How many rows each
// has is known to the device alone; the host waits for these E numbers once a tile and pass.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

#include "trireme/kernels/sum_state.h"

namespace trireme {

struct ExpertRows {
  at::Tensor choice_R;        // int64: the choice t k + j of each row
  at::Tensor token_R;         // int64: its token t
  at::Tensor row_Tk;          // int64: the row of each choice
  std::vector<int64_t> ends;  // E, on the host: where each expert's rows end

  int64_t rows() const { return choice_R.size(0); }
};
// experts [T, k] int64, below `experts`.
ExpertRows rows_by_expert(const at::Tensor& experts_Tk, int64_t experts);

// x [T, M] -> [R, M]
at::Tensor gather_rows(const ExpertRows& rows, const at::Tensor& x_TM);
// [T, k] -> [R, 1]
at::Tensor gather_choices(const ExpertRows& rows, const at::Tensor& values_Tk);
// y [R, M] -> [T, M] in fp32 (fp64 of fp64): the sum of a token's rows, times weights [T, k] where defined.
at::Tensor sum_of_rows(const ExpertRows& rows, const at::Tensor& y_RM, const at::Tensor& weights_Tk);

// The three products of linear.h for each expert e with its rows: weights and gradients are [E n, k], the
// experts' matrices one below the other. Where the gradients' state is undefined, they are written over, with
// zeroes of an expert without rows.
void expert_products_into(const ExpertRows& rows, at::Tensor& out_Rn, const at::Tensor& x_Rk,
                          const at::Tensor& weights_Enk);
void expert_products_backward_into(const ExpertRows& rows, at::Tensor& dx_Rk, const at::Tensor& dy_Rn,
                                   const at::Tensor& weights_Enk);
void add_expert_gradients(const ExpertRows& rows, const at::Tensor& gradients_Enk, const at::Tensor& dy_Rn,
                          const at::Tensor& x_Rk, SumState state);

}  // namespace trireme
