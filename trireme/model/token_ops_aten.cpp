// The token-wise operations in ATen: any device, any float dtype, computed in fp32 (fp64 for fp64).
#include "trireme/model/token_ops.h"

namespace trireme::aten {
namespace {

at::ScalarType compute_dtype(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

at::Tensor inverse_rms(const at::Tensor& x, double eps) {
  return at::rsqrt(at::mean(x * x, -1, /*keepdim=*/true) + eps);
}

// d(x) of y = x * r * w with r = rsqrt(mean(x^2) + eps), for each row; everything in the compute dtype.
struct NormGradient {
  at::Tensor dx;
  at::Tensor dweight_rows;  // to be summed over rows
};
NormGradient norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor r = inverse_rms(x, eps);
  const at::Tensor hat = x * r;
  const at::Tensor g = dy * weight;
  return {r * (g - hat * at::mean(g * hat, -1, true)), dy * hat};
}

struct RotaryRows {
  at::Tensor cos, sin;  // [T, 1, D/2]
};
RotaryRows rotary_rows(const RotaryHeads& rotary, int64_t tokens, at::ScalarType dtype) {
  const int64_t rows = rotary.cos.size(0);
  const at::Tensor index =
      at::remainder(at::arange(rotary.first_row, rotary.first_row + tokens,
                               at::TensorOptions().dtype(at::kLong).device(rotary.cos.device())),
                    rows);
  return {rotary.cos.index_select(0, index).unsqueeze(1).to(dtype),
          rotary.sin.index_select(0, index).unsqueeze(1).to(dtype)};
}

at::Tensor rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const int64_t half = x.size(-1) / 2;
  const at::Tensor a = x.narrow(-1, 0, half), b = x.narrow(-1, half, half);
  return at::cat({a * cos - b * sin, b * cos + a * sin}, -1);
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x_TM, const at::Tensor& weight, double eps, at::ScalarType out_dtype) {
  const at::Tensor x = x_TM.to(compute_dtype(x_TM));
  return (x * inverse_rms(x, eps) * weight.to(x.scalar_type())).to(out_dtype);
}

void rms_norm_backward(const at::Tensor& dy_TM, const at::Tensor& x_TM, const at::Tensor& weight, double eps,
                       at::Tensor& dx_TM, at::Tensor& dweight) {
  const auto dtype = compute_dtype(x_TM);
  const auto gradient = norm_backward(dy_TM.to(dtype), x_TM.to(dtype), weight.to(dtype), eps);
  dx_TM.copy_(dx_TM.to(dtype) + gradient.dx);
  dweight.add_(gradient.dweight_rows.sum(0));
}

void rotate_heads(const at::Tensor& from_TND, const RotaryHeads& rotary, at::Tensor to_TND) {
  const int64_t T = from_TND.size(0), N = from_TND.size(1);
  const int64_t H = rotary.query_heads, R = rotary.rotated_heads;
  const auto dtype = compute_dtype(from_TND);
  at::Tensor x = from_TND.narrow(1, 0, R).to(dtype);
  if (rotary.q_norm.defined()) {
    const at::Tensor q = x.narrow(1, 0, H), k = x.narrow(1, H, R - H);
    x = at::cat({q * inverse_rms(q, rotary.norm_eps) * rotary.q_norm.to(dtype),
                 k * inverse_rms(k, rotary.norm_eps) * rotary.k_norm.to(dtype)},
                1);
  }
  const auto rows = rotary_rows(rotary, T, dtype);
  const at::Tensor rotated = rotate(x, rows.cos, rows.sin);
  to_TND.narrow(1, 0, R).copy_(rotated);
  if (to_TND.data_ptr() != from_TND.data_ptr())
    to_TND.narrow(1, R, N - R).copy_(from_TND.narrow(1, R, N - R));
}

void rotate_heads_backward(const at::Tensor& from_TND, const RotaryHeads& rotary,
                           const at::Tensor& before_TND, at::Tensor to_TND, at::Tensor& dq_norm,
                           at::Tensor& dk_norm) {
  const int64_t T = from_TND.size(0), N = from_TND.size(1);
  const int64_t H = rotary.query_heads, R = rotary.rotated_heads;
  const auto dtype = compute_dtype(from_TND);
  const auto rows = rotary_rows(rotary, T, dtype);
  at::Tensor d = rotate(from_TND.narrow(1, 0, R).to(dtype), rows.cos, -rows.sin);
  if (rotary.q_norm.defined()) {
    const at::Tensor x = before_TND.narrow(1, 0, R).to(dtype);
    const auto q =
        norm_backward(d.narrow(1, 0, H), x.narrow(1, 0, H), rotary.q_norm.to(dtype), rotary.norm_eps);
    const auto k =
        norm_backward(d.narrow(1, H, R - H), x.narrow(1, H, R - H), rotary.k_norm.to(dtype), rotary.norm_eps);
    dq_norm.add_(q.dweight_rows.sum(at::IntArrayRef({0, 1})));
    dk_norm.add_(k.dweight_rows.sum(at::IntArrayRef({0, 1})));
    d = at::cat({q.dx, k.dx}, 1);
  }
  to_TND.narrow(1, 0, R).copy_(d);
  if (to_TND.data_ptr() != from_TND.data_ptr())
    to_TND.narrow(1, R, N - R).copy_(from_TND.narrow(1, R, N - R));
}

at::Tensor swiglu(const at::Tensor& gate_up) {
  const int64_t I = gate_up.size(1) / 2;
  const auto dtype = compute_dtype(gate_up);
  const at::Tensor gate = gate_up.narrow(1, 0, I).to(dtype), up = gate_up.narrow(1, I, I).to(dtype);
  return (at::silu(gate) * up).to(gate_up.scalar_type());
}

at::Tensor swiglu_backward(const at::Tensor& dact, at::Tensor& gate_up) {
  const int64_t I = gate_up.size(1) / 2;
  const auto dtype = compute_dtype(gate_up);
  const at::Tensor gate = gate_up.narrow(1, 0, I).to(dtype), up = gate_up.narrow(1, I, I).to(dtype);
  const at::Tensor d = dact.to(dtype);
  const at::Tensor sigmoid = at::sigmoid(gate);
  const at::Tensor silu = gate * sigmoid;
  const at::Tensor act = (silu * up).to(gate_up.scalar_type());
  const at::Tensor dgate = d * up * sigmoid * (1 + gate * (1 - sigmoid));
  gate_up.narrow(1, 0, I).copy_(dgate);
  gate_up.narrow(1, I, I).copy_(d * silu);
  return act;
}

void cross_entropy(at::Tensor& logits_TV, const at::Tensor& targets, at::Tensor& loss,
                   std::optional<double> scale) {
  const auto dtype = compute_dtype(logits_TV);
  const at::Tensor valid = targets.ge(0);
  const at::Tensor index = at::where(valid, targets, at::zeros_like(targets)).unsqueeze(1);
  const at::Tensor log_probabilities = at::log_softmax(logits_TV.to(dtype), 1);
  loss.copy_(at::where(valid, -log_probabilities.gather(1, index).squeeze(1),
                       at::zeros({}, log_probabilities.options())));
  if (!scale) return;
  at::Tensor d = at::exp(log_probabilities);
  d.scatter_add_(1, index, at::full_like(index, -1, d.options()));
  d.mul_(valid.to(dtype).unsqueeze(1) * *scale);
  logits_TV.copy_(d);
}

}  // namespace trireme::aten
