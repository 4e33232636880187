#include "trireme/model/linear.h"

namespace trireme {

void linear_into(at::Tensor& out_Tn, const at::Tensor& x_Tk, const at::Tensor& weight_nk,
                 const at::Tensor& bias_n) {
  if (bias_n.defined())
    at::addmm_out(out_Tn, bias_n, x_Tk, weight_nk.t());
  else
    at::mm_out(out_Tn, x_Tk, weight_nk.t());
}

at::Tensor linear_forward(const at::Tensor& x_Tk, const at::Tensor& weight_nk, const at::Tensor& bias_n) {
  at::Tensor out = at::empty({x_Tk.size(0), weight_nk.size(0)}, x_Tk.options());
  linear_into(out, x_Tk, weight_nk, bias_n);
  return out;
}

void add_linear_gradient(at::Tensor& gradient_nk, at::Tensor& bias_gradient_n, const at::Tensor& dy_Tn,
                         const at::Tensor& x_Tk) {
  if (dy_Tn.scalar_type() == gradient_nk.scalar_type())
    gradient_nk.addmm_(dy_Tn.t(), x_Tk);
  else
    gradient_nk.add_(at::mm(dy_Tn.t(), x_Tk));
  if (bias_gradient_n.defined())
    bias_gradient_n.add_(dy_Tn.sum(0, /*keepdim=*/false, bias_gradient_n.scalar_type()));
}

}  // namespace trireme
