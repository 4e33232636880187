#include "trireme/kernels/expert_rows.h"

#include <tuple>

#include "trireme/base/error.h"
#include "trireme/kernels/linear.h"
#include "trireme/kernels/token_ops.h"

namespace trireme {
namespace {

// Calls body(expert, first row, rows) for each expert.
template <typename Body>
void for_experts(const ExpertRows& rows, const Body& body) {
  int64_t begin = 0;
  for (size_t expert = 0; expert < rows.ends.size(); ++expert) {
    const int64_t end = rows.ends[expert];
    body(static_cast<int64_t>(expert), begin, end - begin);
    begin = end;
  }
}

// Of matrices one below the other.
at::Tensor matrix_of(const ExpertRows& rows, const at::Tensor& matrices_Enk, int64_t expert) {
  const int64_t n = matrices_Enk.size(0) / static_cast<int64_t>(rows.ends.size());
  return matrices_Enk.narrow(0, expert * n, n);
}

}  // namespace

ExpertRows rows_by_expert(const at::Tensor& experts_Tk, int64_t experts) {
  const at::Tensor choices = experts_Tk.reshape({-1});
  ExpertRows rows;
  at::Tensor sorted;
  std::tie(sorted, rows.choice_R) = at::sort(choices, /*stable=*/true, /*dim=*/0, /*descending=*/false);
  rows.token_R = at::floor_divide(rows.choice_R, experts_Tk.size(1));
  rows.row_Tk = at::empty_like(choices);
  rows.row_Tk.scatter_(0, rows.choice_R, at::arange(choices.size(0), choices.options()));
  rows.row_Tk = rows.row_Tk.view(experts_Tk.sizes());
  const at::Tensor ends =
      at::searchsorted(sorted, at::arange(experts, choices.options()), /*out_int32=*/false, /*right=*/true)
          .cpu();
  const int64_t* values = ends.const_data_ptr<int64_t>();
  rows.ends.assign(values, values + experts);
  TRIREME_ASSERT(rows.ends.back() == rows.rows(), rows.rows(), " rows of which ", rows.ends.back(),
                 " have an expert");
  return rows;
}

at::Tensor gather_rows(const ExpertRows& rows, const at::Tensor& x_TM) {
  return x_TM.index_select(0, rows.token_R);
}
at::Tensor gather_choices(const ExpertRows& rows, const at::Tensor& values_Tk) {
  return values_Tk.reshape({-1}).index_select(0, rows.choice_R).unsqueeze(1);
}

at::Tensor sum_of_rows(const ExpertRows& rows, const at::Tensor& y_RM, const at::Tensor& weights_Tk) {
  const int64_t T = rows.row_Tk.size(0), k = rows.row_Tk.size(1);
  at::Tensor sum = at::zeros({T, y_RM.size(1)}, y_RM.options().dtype(compute_dtype(y_RM)));
  for (int64_t choice = 0; choice < k; ++choice) {
    const at::Tensor y_TM = y_RM.index_select(0, rows.row_Tk.select(1, choice)).to(sum.scalar_type());
    if (weights_Tk.defined())
      sum.addcmul_(y_TM, weights_Tk.narrow(1, choice, 1));
    else
      sum.add_(y_TM);
  }
  return sum;
}

void expert_products_into(const ExpertRows& rows, at::Tensor& out_Rn, const at::Tensor& x_Rk,
                          const at::Tensor& weights_Enk) {
  for_experts(rows, [&](int64_t expert, int64_t begin, int64_t count) {
    if (count == 0) return;
    at::Tensor out = out_Rn.narrow(0, begin, count);
    linear_into(out, x_Rk.narrow(0, begin, count), matrix_of(rows, weights_Enk, expert), {});
  });
}

void expert_products_backward_into(const ExpertRows& rows, at::Tensor& dx_Rk, const at::Tensor& dy_Rn,
                                   const at::Tensor& weights_Enk) {
  for_experts(rows, [&](int64_t expert, int64_t begin, int64_t count) {
    if (count == 0) return;
    at::Tensor dx = dx_Rk.narrow(0, begin, count);
    linear_backward_into(dx, dy_Rn.narrow(0, begin, count), matrix_of(rows, weights_Enk, expert));
  });
}

void add_expert_gradients(const ExpertRows& rows, const at::Tensor& gradients_Enk, const at::Tensor& dy_Rn,
                          const at::Tensor& x_Rk, SumState state) {
  at::Tensor no_bias;
  for_experts(rows, [&](int64_t expert, int64_t begin, int64_t count) {
    at::Tensor gradient = matrix_of(rows, gradients_Enk, expert);
    if (count > 0)
      add_linear_gradient(gradient, no_bias, dy_Rn.narrow(0, begin, count), x_Rk.narrow(0, begin, count),
                          state);
    else if (state == SumState::undefined)
      gradient.zero_();
  });
}

}  // namespace trireme
