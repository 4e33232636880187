#include "trireme/model/adapted_linear.h"

#include "trireme/kernels/linear.h"
#include "trireme/kernels/product.h"

namespace trireme {
namespace {

at::Tensor bias_of(const UnitWeights& w, std::optional<size_t> slot) {
  return slot ? w[*slot] : at::Tensor();
}

// u: scale x A', of the first `parts` of the matrix.
at::Tensor inner_forward(const at::Tensor& x_Tk, const UnitWeights& w, const AdaptedMatrix& adapted,
                         size_t parts) {
  const int64_t rows = static_cast<int64_t>(parts) * w.adapter_rank();
  return product(x_Tk, w.adapter(adapted.a).narrow(0, 0, rows).t()).mul_(w.adapter_scale());
}

// The columns of u or v that belong to a part.
at::Tensor columns_of(const at::Tensor& inner_TR, const UnitWeights& w, size_t part) {
  return inner_TR.narrow(1, static_cast<int64_t>(part) * w.adapter_rank(), w.adapter_rank());
}

at::Tensor columns_of(const at::Tensor& y_Tn, const AdaptedRows& part) {
  return y_Tn.narrow(1, part.first_row, part.rows);
}

// v: scale dy B
at::Tensor inner_backward(const at::Tensor& dy_Tn, const UnitWeights& w, const AdaptedMatrix& adapted) {
  at::Tensor inner = at::empty({dy_Tn.size(0), static_cast<int64_t>(adapted.rows.size()) * w.adapter_rank()},
                               dy_Tn.options());
  for (size_t part = 0; part < adapted.rows.size(); ++part)
    product_into(columns_of(inner, w, part), columns_of(dy_Tn, adapted.rows[part]),
                 w.adapter(adapted.rows[part].b));
  return inner.mul_(w.adapter_scale());
}

// y += u B', of the parts whose rows y has.
void add_adapters(const at::Tensor& y_Tn, const at::Tensor& x_Tk, const UnitWeights& w, size_t matrix) {
  const AdaptedMatrix* adapted = w.adapted(matrix);
  if (adapted == nullptr) return;
  size_t parts = 0;
  while (parts < adapted->rows.size() && adapted->rows[parts].first_row < y_Tn.size(1)) ++parts;
  if (parts == 0) return;
  const at::Tensor inner = inner_forward(x_Tk, w, *adapted, parts);
  for (size_t part = 0; part < parts; ++part)
    add_product(columns_of(y_Tn, adapted->rows[part]), columns_of(inner, w, part),
                w.adapter(adapted->rows[part].b).t());
}

}  // namespace

void adapted_linear_into(at::Tensor& out_Tn, const at::Tensor& x_Tk, const UnitWeights& w, size_t matrix,
                         std::optional<size_t> bias) {
  linear_into(out_Tn, x_Tk, w[matrix], bias_of(w, bias));
  add_adapters(out_Tn, x_Tk, w, matrix);
}

at::Tensor adapted_linear(const at::Tensor& x_Tk, const UnitWeights& w, size_t matrix,
                          std::optional<size_t> bias) {
  return adapted_linear_of_rows(x_Tk, w, matrix, bias, w[matrix].size(0));
}

at::Tensor adapted_linear_of_rows(const at::Tensor& x_Tk, const UnitWeights& w, size_t matrix,
                                  std::optional<size_t> bias, int64_t rows) {
  const at::Tensor b = bias_of(w, bias);
  at::Tensor out = linear_forward(x_Tk, w[matrix].narrow(0, 0, rows), b.defined() ? b.narrow(0, 0, rows) : b);
  add_adapters(out, x_Tk, w, matrix);
  return out;
}

void add_adapted_linear(const at::Tensor& sum_Tn, const at::Tensor& x_Tk, const UnitWeights& w, size_t matrix,
                        std::optional<size_t> bias) {
  add_product(sum_Tn, x_Tk, w[matrix].t());
  if (const at::Tensor b = bias_of(w, bias); b.defined()) sum_Tn.add_(b);
  add_adapters(sum_Tn, x_Tk, w, matrix);
}

at::Tensor adapted_linear_backward(const at::Tensor& dy_Tn, const UnitWeights& w, size_t matrix) {
  at::Tensor dx = at::empty({dy_Tn.size(0), w[matrix].size(1)}, dy_Tn.options());
  adapted_linear_backward_into(dx, dy_Tn, w, matrix);
  return dx;
}

void adapted_linear_backward_into(at::Tensor& dx_Tk, const at::Tensor& dy_Tn, const UnitWeights& w,
                                  size_t matrix) {
  const AdaptedMatrix* adapted = w.adapted(matrix);
  if (adapted == nullptr || dx_Tk.scalar_type() != dy_Tn.scalar_type()) {
    if (adapted == nullptr)
      linear_backward_into(dx_Tk, dy_Tn, w[matrix]);
    else
      dx_Tk.copy_(adapted_linear_backward(dy_Tn, w, matrix));
    return;
  }
  product_into(dx_Tk, dy_Tn, w[matrix]);
  add_product(dx_Tk, inner_backward(dy_Tn, w, *adapted), w.adapter(adapted->a));
}

void add_adapted_linear_gradients(UnitGradients& gradients, const UnitWeights& w, size_t matrix,
                                  std::optional<size_t> bias, const at::Tensor& dy_Tn,
                                  const at::Tensor& x_Tk) {
  gradients.add_linear(matrix, bias, dy_Tn, x_Tk);
  const AdaptedMatrix* adapted = w.adapted(matrix);
  if (adapted == nullptr) return;
  UnitGradients& adapters = gradients.adapters();
  adapters.add_linear(adapted->a, std::nullopt, inner_backward(dy_Tn, w, *adapted), x_Tk);
  const at::Tensor inner = inner_forward(x_Tk, w, *adapted, adapted->rows.size());
  for (size_t part = 0; part < adapted->rows.size(); ++part)
    adapters.add_linear(adapted->rows[part].b, std::nullopt, columns_of(dy_Tn, adapted->rows[part]),
                        columns_of(inner, w, part));
}

}  // namespace trireme
