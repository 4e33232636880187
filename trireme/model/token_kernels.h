// Row kernels behind token_ops_cpu.cpp, as a table of functions, one table for each x86-64 level. bf16 values
// are uint16_t here. Pointers to rows come with a stride in elements.
#pragma once

#include <stdint.h>

namespace trireme {

struct RotaryRow {
  int64_t heads = 0, query_heads = 0, rotated_heads = 0, head_dim = 0;
  const float* cos = nullptr;  // [D/2] of this token
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
struct TileKernels {
  void (*swiglu)(const X* gate_up, X* act, int64_t I);
  void (*swiglu_backward)(const X* dact, X* gate_up, X* act, int64_t I);
  // Returns the loss; with `gradient`, replaces logits by (softmax - onehot) * scale. target < 0: 0 and
  // zeros.
  float (*cross_entropy)(X* logits, int64_t target, bool gradient, float scale, int64_t V);
};

struct TokenKernels {
  RowKernels<float, float> ff;
  RowKernels<float, uint16_t> fb;
  RowKernels<uint16_t, float> bf;
  RowKernels<uint16_t, uint16_t> bb;
  NormBackwardKernel<float, float, float> norm_fff;
  NormBackwardKernel<float, float, uint16_t> norm_ffb;
  NormBackwardKernel<float, uint16_t, float> norm_fbf;
  NormBackwardKernel<float, uint16_t, uint16_t> norm_fbb;
  NormBackwardKernel<uint16_t, float, float> norm_bff;
  NormBackwardKernel<uint16_t, float, uint16_t> norm_bfb;
  NormBackwardKernel<uint16_t, uint16_t, float> norm_bbf;
  NormBackwardKernel<uint16_t, uint16_t, uint16_t> norm_bbb;
  TileKernels<float> f;
  TileKernels<uint16_t> b;
};

namespace simd_base {
const TokenKernels& token_kernels();
}
namespace simd_v3 {
const TokenKernels& token_kernels();
}
namespace simd_v4 {
const TokenKernels& token_kernels();
}

}  // namespace trireme
