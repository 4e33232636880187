#include "trireme/kernels/linear.h"

#include <algorithm>
#include <optional>

#include "trireme/kernels/cpu_weight_gradient.h"
#include "trireme/kernels/product.h"

namespace trireme {
namespace {

// On the CPU ATen widens all of a 16-bit tensor before it sums it up in fp32: rows that lie in cache are
// widened at a time instead.
void add_column_sums(at::Tensor& sums_n, const at::Tensor& x_Tn) {
  constexpr int64_t kWidened_elements = 16 * 1024;
  const bool widens = x_Tn.is_cpu() && x_Tn.scalar_type() != sums_n.scalar_type();
  const int64_t tokens = x_Tn.size(0);
  const int64_t rows = widens ? std::max<int64_t>(1, kWidened_elements / x_Tn.size(1)) : tokens;
  for (int64_t begin = 0; begin < tokens; begin += rows)
    sums_n.add_(x_Tn.narrow(0, begin, std::min(rows, tokens - begin))
                    .sum(0, /*keepdim=*/false, sums_n.scalar_type()));
}

// Where the processor multiplies blocks of such values.
std::optional<Bf16Units> bf16_blocks_of(const at::Tensor& x) {
  if (!x.is_cpu() || x.scalar_type() != at::kBFloat16) return std::nullopt;
  static const std::optional<Bf16Units> units = processor_bf16_units();
  return units;
}

}  // namespace

void linear_into(at::Tensor& out_Tn, const at::Tensor& x_Tk, const at::Tensor& weight_nk,
                 const at::Tensor& bias_n) {
  if (!bias_n.defined()) {
    product_into(out_Tn, x_Tk, weight_nk.t());
  } else if (x_Tk.is_cpu() && x_Tk.scalar_type() == at::kFloat) {
    out_Tn.copy_(bias_n);
    add_product(out_Tn, x_Tk, weight_nk.t());
  } else {
    at::addmm_out(out_Tn, bias_n, x_Tk, weight_nk.t());
  }
}

at::Tensor linear_forward(const at::Tensor& x_Tk, const at::Tensor& weight_nk, const at::Tensor& bias_n) {
  at::Tensor out = at::empty({x_Tk.size(0), weight_nk.size(0)}, x_Tk.options());
  linear_into(out, x_Tk, weight_nk, bias_n);
  return out;
}

void linear_backward_into(at::Tensor& dx_Tk, const at::Tensor& dy_Tn, const at::Tensor& weight_nk) {
  if (dx_Tk.scalar_type() == dy_Tn.scalar_type())
    product_into(dx_Tk, dy_Tn, weight_nk);
  else
    dx_Tk.copy_(product(dy_Tn, weight_nk));
}

void add_linear_gradient(at::Tensor& gradient_nk, at::Tensor& bias_gradient_n, const at::Tensor& dy_Tn,
                         const at::Tensor& x_Tk, SumState state) {
  const auto sum_dtype = gradient_nk.scalar_type();
  const bool begun = state == SumState::begun;
  if (dy_Tn.scalar_type() == sum_dtype) {
    if (begun)
      add_product(gradient_nk, dy_Tn.t(), x_Tk);
    else
      product_into(gradient_nk, dy_Tn.t(), x_Tk);
  } else if (const auto units = bf16_blocks_of(dy_Tn)) {
    add_weight_gradient(gradient_nk, dy_Tn, x_Tk, state, *units);
  } else if (dy_Tn.is_cpu()) {  // libtorch has no CPU product of 16-bit factors into fp32
    const at::Tensor rounded = at::mm(dy_Tn.t(), x_Tk);
    if (begun)
      gradient_nk.add_(rounded);
    else
      gradient_nk.copy_(rounded);
  } else if (begun) {
    at::addmm_out(gradient_nk, gradient_nk, dy_Tn.t(), x_Tk, sum_dtype);
  } else {
    at::mm_out(gradient_nk, dy_Tn.t(), x_Tk, sum_dtype);
  }
  if (bias_gradient_n.defined()) add_column_sums(bias_gradient_n, dy_Tn);
}

}  // namespace trireme
