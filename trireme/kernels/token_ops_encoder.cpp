// The token-wise operations of encoders: kernels of our own on a CUDA device, else ATen's, which are fused on
// every device, called so that statistics and sums are fp32 (fp64 for fp64).
#include <array>
#include <tuple>

#include "trireme/kernels/token_ops.h"
#include "trireme/kernels/token_ops_gpu.h"

namespace trireme {

at::Tensor layer_norm(const at::Tensor& x_TM, const at::Tensor& weight, const at::Tensor& bias, double eps,
                      at::ScalarType out_dtype) {
  if (const auto y = gpu::layer_norm(x_TM, weight, bias, eps, out_dtype)) return *y;
  return aten::layer_norm(x_TM, weight, bias, eps, out_dtype);
}

at::Tensor layer_norm_backward(const at::Tensor& dy_TM, const at::Tensor& x_TM, const at::Tensor& weight,
                               double eps, at::ScalarType out_dtype, at::Tensor& dweight, at::Tensor& dbias) {
  if (const auto dx = gpu::layer_norm_backward(dy_TM, x_TM, weight, eps, out_dtype, dweight, dbias))
    return *dx;
  return aten::layer_norm_backward(dy_TM, x_TM, weight, eps, out_dtype, dweight, dbias);
}

namespace aten {

at::Tensor layer_norm(const at::Tensor& x_TM, const at::Tensor& weight, const at::Tensor& bias, double eps,
                      at::ScalarType out_dtype) {
  const auto dtype = compute_dtype(x_TM);
  return std::get<0>(
             at::native_layer_norm(x_TM.to(dtype), {x_TM.size(1)}, weight.to(dtype), bias.to(dtype), eps))
      .to(out_dtype);
}

at::Tensor layer_norm_backward(const at::Tensor& dy_TM, const at::Tensor& x_TM, const at::Tensor& weight,
                               double eps, at::ScalarType out_dtype, at::Tensor& dweight, at::Tensor& dbias) {
  const auto dtype = compute_dtype(x_TM);
  const std::array<int64_t, 1> row{x_TM.size(1)};
  const at::Tensor x = x_TM.to(dtype), w = weight.to(dtype);
  at::Tensor mean, rstd;
  std::tie(std::ignore, mean, rstd) = at::native_layer_norm(x, row, {}, {}, eps);
  // Of the bias ATen reads the shape alone.
  const auto [dx, dw, db] =
      at::native_layer_norm_backward(dy_TM.to(dtype), x, row, mean, rstd, w, /*bias=*/w, {true, true, true});
  dweight.add_(dw);
  dbias.add_(db);
  return dx.to(out_dtype);
}

}  // namespace aten

at::Tensor exact_gelu(const at::Tensor& x) {
  return at::gelu(x);
}

void exact_gelu_backward(at::Tensor& dact, at::Tensor& x) {
  if (gpu::exact_gelu_backward(dact, x)) return;
  at::gelu_backward_out(dact, dact, x);
  at::gelu_out(x, x);
}

}  // namespace trireme
