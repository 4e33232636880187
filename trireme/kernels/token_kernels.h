// Row kernels behind token_ops.cpp, as a table of functions, one table for each x86-64 level. Each kernel
// reads and writes fp32 or one 16-bit type (bf16 or fp16, never both) and computes in fp32.
#pragma once

#include <stdint.h>

#include "trireme/device/simd_level.h"
#include "trireme/kernels/glu_gate.h"
#include "trireme/kernels/narrow_floats.h"

namespace trireme {

struct RotaryRow {
  int64_t heads = 0, query_heads = 0, rotated_heads = 0, head_dim = 0;
  int64_t turning_pairs = 0;   // r: values i and i + r for i < r
  const float* cos = nullptr;  // [r] of this token
  const float* sin = nullptr;
  const float* q_norm = nullptr;  // [D] or none
  const float* k_norm = nullptr;
  float eps = 0;
};

template <typename X, typename Y>
struct RowKernels {
  void (*rms_norm)(const X* x, const float* weight, float eps, Y* y, int64_t M);
  void (*rotate)(const X* from, const RotaryRow& row, Y* to);
  // `before`: the values before the norms, in Y's dtype; may be null without norms.
  void (*rotate_backward)(const X* from, const RotaryRow& row, const Y* before, Y* to, float* dq_norm,
                          float* dk_norm);
};

template <typename Dy, typename X, typename Dx>
struct NormBackwardKernel {
  void (*run)(const Dy* dy, const X* x, const float* weight, float eps, Dx* dx, float* dweight, int64_t M);
};

template <typename X>
struct GluKernels {
  void (*forward)(const X* gate_up, X* act, int64_t I);
  void (*backward)(const X* dact, X* gate_up, X* act, int64_t I);
};

template <typename X>
struct TileKernels {
  GluKernels<X> silu, gelu_tanh;
  const GluKernels<X>& glu(GluGate gate) const { return gate == GluGate::silu ? silu : gelu_tanh; }
  // Returns the loss; with `gradient`, replaces logits by (softmax - onehot) * scale, times
  // 1 - (logit / cap)^2 where cap is above 0. target < 0: 0 and zeros; from V on: not a number.
  float (*cross_entropy)(X* logits, int64_t target, bool gradient, float scale, float cap, int64_t V);
};

// The kernels of fp32 (f) and one 16-bit type S (s).
template <typename S>
struct KernelsWith {
  RowKernels<float, float> ff;
  RowKernels<float, S> fs;
  RowKernels<S, float> sf;
  RowKernels<S, S> ss;
  NormBackwardKernel<float, float, float> norm_fff;
  NormBackwardKernel<float, float, S> norm_ffs;
  NormBackwardKernel<float, S, float> norm_fsf;
  NormBackwardKernel<float, S, S> norm_fss;
  NormBackwardKernel<S, float, float> norm_sff;
  NormBackwardKernel<S, float, S> norm_sfs;
  NormBackwardKernel<S, S, float> norm_ssf;
  NormBackwardKernel<S, S, S> norm_sss;
  TileKernels<float> f;
  TileKernels<S> s;
};

struct TokenKernels {
  KernelsWith<Bf16> bf16;
  KernelsWith<Fp16> fp16;
};

TRIREME_SIMD_KERNEL(extern const TokenKernels kTokenKernels)

}  // namespace trireme
