// The token-wise operations of a layer beside its matmuls, forward and backward written out. Each works on
// a tile of T tokens; sums and statistics are fp32 whatever the dtype. Implementations of those that decoders
// use: fused loops for the CPU (token_ops.cpp), kernels for CUDA (token_ops_gpu.h) and ATen for any
// device (token_ops_aten.cpp), chosen by the tensors' device and dtypes. Those of encoders have CUDA's
// kernels and ATen's own (token_ops_encoder.cpp).
//
// "tile dtype" is what matmuls run in, "storage dtype" what is kept between tiles; they differ where bf16
// or fp16 values are multiplied in fp32.
#pragma once

#include <optional>

#include <ATen/ATen.h>

#include "trireme/kernels/glu_gate.h"

namespace trireme {

// Of statistics and sums: fp32, fp64 for fp64.
inline at::ScalarType compute_dtype(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// What an RMS norm multiplies by: the weight, or 1 + it (Gemma). The sum is fp32: 16 bits would round it, and
// transformers does not.
inline at::Tensor norm_factor(const at::Tensor& weight, bool adds_one) {
  return adds_one && weight.defined() ? weight.to(compute_dtype(weight)).add(1) : weight;
}

// y = x * rsqrt(mean(x^2) + eps) * norm_factor.   x [T, M] any float dtype, weight [M] -> y [T, M] of `out_dtype`.
at::Tensor rms_norm(const at::Tensor& x_TM, const at::Tensor& weight, double eps, at::ScalarType out_dtype,
                    bool adds_one = false);

// Adds the gradient to dx [T, M] (any float dtype, strided rows) and to dweight [M] fp32, from dy [T, M].
void rms_norm_backward(const at::Tensor& dy_TM, const at::Tensor& x_TM, const at::Tensor& weight, double eps,
                       at::Tensor& dx_TM, at::Tensor& dweight, bool adds_one = false);

// Rotary embedding of heads [0, rotated_heads) of `from` [T, N, D] (values i and i + r of the first 2r are a
// pair, the others stay: Qwen3.5's partial_rotary_factor is 2r / D), with optional RMS norm of each head's D
// values before it (q_norm for heads < query_heads, k_norm for the others), the other heads copied. Result in
// `to` [T, N, D], possibly of another dtype, possibly the same tensor. Token t of the tile has the table's row
// (first_row + t) % table rows.
struct RotaryHeads {
  int64_t query_heads = 0;    // H
  int64_t rotated_heads = 0;  // H + K
  int64_t turning_pairs = 0;  // r, of each head's D / 2; 0: all
  at::Tensor cos;             // [rows, r] fp32: what stays is not multiplied by 1
  at::Tensor sin;             // [rows, r] fp32
  int64_t first_row = 0;
  at::Tensor q_norm;  // [D] or undefined
  at::Tensor k_norm;  // [D] or undefined
  bool norms_add_one = false;
  double norm_eps = 0;

  // r of heads that are D wide.
  int64_t pairs_of(int64_t head_dim) const;
};
void rotate_heads(const at::Tensor& from_TND, const RotaryHeads& rotary, at::Tensor to_TND);
// The gradient: `from` of the rotated heads -> `to` of the unrotated ones. With norms, `before_TND` are the
// values that went into the forward, and the norms' gradients are added to dq_norm and dk_norm (fp32 [D]).
void rotate_heads_backward(const at::Tensor& from_TND, const RotaryHeads& rotary,
                           const at::Tensor& before_TND, at::Tensor to_TND, at::Tensor& dq_norm,
                           at::Tensor& dk_norm);

// gate_up [T, 2I] -> f(gate) * up [T, I], same dtype: SwiGLU or GeGLU.
at::Tensor glu(GluGate gate, const at::Tensor& gate_up);
// dact [T, I], gate_up [T, 2I] -> d(gate_up), in place of gate_up; returns act [T, I] again (down's gradient
// needs it).
at::Tensor glu_backward(GluGate gate, const at::Tensor& dact, at::Tensor& gate_up);

// y = (x - mean(x)) * rsqrt(var(x) + eps) * weight + bias.   x [T, M], weight and bias [M] -> y [T, M] of
// `out_dtype`.
at::Tensor layer_norm(const at::Tensor& x_TM, const at::Tensor& weight, const at::Tensor& bias, double eps,
                      at::ScalarType out_dtype);
// dy [T, M] -> dx [T, M] of `out_dtype`; added to dweight and dbias [M] fp32.
at::Tensor layer_norm_backward(const at::Tensor& dy_TM, const at::Tensor& x_TM, const at::Tensor& weight,
                               double eps, at::ScalarType out_dtype, at::Tensor& dweight, at::Tensor& dbias);

// x * P(X <= x) for a standard normal X, the exact form with erf (arXiv 1606.08415); same shape and dtype.
at::Tensor exact_gelu(const at::Tensor& x);
// Both in place: d(act) becomes d(x), and x becomes act again (down's gradient needs it).
void exact_gelu_backward(at::Tensor& dact, at::Tensor& x);

// Cross entropy of logits [T, V] with targets [T] int64 on the logits' device (-100: none). Writes each
// token's loss to loss [T] fp32 (0 where there is no target). When `scale` is given, replaces logits by d(sum
// of losses * scale). With a `cap` above 0 logits are those that cap_logits left, and the gradient is that of
// what it was given: d(x) = d(c) (1 - (c / cap)^2).
void cross_entropy(at::Tensor& logits_TV, const at::Tensor& targets, at::Tensor& loss,
                   std::optional<double> scale, double cap = 0);
// x becomes c = cap tanh(x / cap), in place.
void cap_logits(at::Tensor& logits_TV, double cap);

// The ATen versions, for any device; tests hold the CPU's loops and CUDA's kernels against them.
namespace aten {
at::Tensor rms_norm(const at::Tensor& x_TM, const at::Tensor& weight, double eps, at::ScalarType out_dtype,
                    bool adds_one = false);
void rms_norm_backward(const at::Tensor& dy_TM, const at::Tensor& x_TM, const at::Tensor& weight, double eps,
                       at::Tensor& dx_TM, at::Tensor& dweight, bool adds_one = false);
void rotate_heads(const at::Tensor& from_TND, const RotaryHeads& rotary, at::Tensor to_TND);
void rotate_heads_backward(const at::Tensor& from_TND, const RotaryHeads& rotary,
                           const at::Tensor& before_TND, at::Tensor to_TND, at::Tensor& dq_norm,
                           at::Tensor& dk_norm);
at::Tensor layer_norm(const at::Tensor& x_TM, const at::Tensor& weight, const at::Tensor& bias, double eps,
                      at::ScalarType out_dtype);
at::Tensor layer_norm_backward(const at::Tensor& dy_TM, const at::Tensor& x_TM, const at::Tensor& weight,
                               double eps, at::ScalarType out_dtype, at::Tensor& dweight, at::Tensor& dbias);
at::Tensor glu(GluGate gate, const at::Tensor& gate_up);
at::Tensor glu_backward(GluGate gate, const at::Tensor& dact, at::Tensor& gate_up);
void cross_entropy(at::Tensor& logits_TV, const at::Tensor& targets, at::Tensor& loss,
                   std::optional<double> scale, double cap = 0);
}  // namespace aten

}  // namespace trireme
