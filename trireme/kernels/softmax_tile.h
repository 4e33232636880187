// The element-wise half of attention on the CPU, on tiles of scores that lie in cache, in base-2
// exponentials:
//
//   forward    p = exp2(c s - max),  c = scale log2(e), with the running row maximum and sum of online
//                                    softmax
//              (Milakov and Gimelshein, arXiv 1805.02867)
//   backward   p' = exp2(c s' - lse2);  ds' = scale p' (dp' - delta)    on transposed tiles: rows are keys
//
// With a cap, cap tanh(scale s / cap) stands for scale s, and ds' has the factor 1 - tanh^2.
//
// What is rounded to bf16 has exponentials with a relative error of 3e-6, else of fp32's rounding.
// Compiled for each x86-64 level, and for AVX-512 with bf16's rounding in an instruction. No torch here.
#pragma once

#include <stdint.h>

#include "trireme/device/simd_level.h"

namespace trireme {

// What a product of q and k becomes.
struct ScoreRule {
  float scale;    // above 0
  float cap = 0;  // 0: none
};

// Rows of scores, each with the columns [begin, end) that its query sees. Widths are multiples of 64.
struct SoftmaxTile {
  float* scores;       // [rows, row_stride]: scores in, probabilities out
  uint16_t* bf16_out;  // the same as bfloat16 (stride row_stride), or null
  int64_t rows;
  int64_t columns;
  int64_t row_stride;
  const int32_t* begin;  // of each row; null: every column is seen
  const int32_t* end;
  ScoreRule rule;
  float* row_max;  // running, in units of log2; minus infinity at first
  float* row_sum;  // running
  float* rescale;  // out: factor by which what was summed before shrinks
};

// Rows are keys, the 64 columns are queries.
struct GradientTile {
  float* scores;          // [rows, 64]: scores in; probabilities out, without the next
  float* gradients;       // [rows, 64]: gradients of probabilities in; of scores out, without the next
  uint16_t* bf16_scores;  // in their place: both results as bfloat16; or null
  uint16_t* bf16_gradients;
  uint16_t* bf16_pairs;  // gradients again, rows interleaved by twos: [rows / 2, 64, 2]
  int64_t rows;
  const int32_t* begin;  // of each row; null: every query sees every key
  const int32_t* end;
  ScoreRule rule;
  const float* lse2;   // [64] log-sum-exp in units of log2; plus infinity for a query that does not exist
  const float* delta;  // [64] rowsum(do * o)
};

struct TileMath {
  const char* instructions;  // "avx512", "avx2" or "portable"
  void (*softmax)(const SoftmaxTile& tile);
  void (*gradient)(const GradientTile& tile);
  // rows[r][0..columns) *= factors[r]; columns a multiple of 16
  void (*scale_rows)(float* rows, int64_t count, int64_t columns, int64_t row_stride, const float* factors);
  // to[i] = factor from[i] as bfloat16; NaN stays NaN
  void (*scale_to_bf16)(const float* from, float factor, int64_t count, uint16_t* to);
};

TRIREME_SIMD_KERNEL(extern const TileMath kTileMath)
namespace simd_v4_bf16 {  // v4 where cpu_rounds_to_bf16
extern const TileMath kTileMath;
}

}  // namespace trireme
