// Products of bfloat16 tiles in AMX's registers: 32 x 32 of the result at a time, in four of the eight
// registers, whose factors pass through the other four.
//
// libtorch's block kernels sum in the same order and give the same bits, but configure the registers anew for
// each kind of product (docs/benchmarks/history/2026-11-30-amx-products.md).
#pragma once

#include <cstdint>

#include <ATen/ATen.h>

namespace trireme {

// True for whole blocks: a product of other sizes is left to libtorch.
constexpr bool amx_multiplies(int64_t m, int64_t n, int64_t k) {
  return m % 32 == 0 && n % 32 == 0 && k % 32 == 0;
}

// Of this thread's registers, which libtorch must not hold, and which at::native::cpublas::brgemm_release gives
// back. libtorch has asked the operating system for AMX.
void configure_amx();

// c[M, N] (+)= a[M, K] panel[K, N] in fp32, N at most 64; the panel as tile_gemm.h describes it.
void amx_product(int64_t m, int64_t n, int64_t k, const at::BFloat16* a, int64_t lda,
                 const at::BFloat16* panel, float* c, int64_t ldc, bool add);

}  // namespace trireme
