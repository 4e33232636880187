// The element-wise half of attention on a GPU (score_tile_kernel.cu), on a tile of scores that a product of matrices
// gave (cuda_tiles_kernel.cpp). A row is one query of one head:
//
//   x = scale s, or with a cap: x = cap tanh(scale s / cap)
//   forward    max' = max(max, x)   p = exp(x - max')   rescale = exp(max - max')   sum' = sum rescale + rowsum(p)
//              (online softmax, arXiv 1805.02867)
//   backward   p = exp(x - lse)     ds = p (dp - delta) dx/ds
//
// A block takes a row and a thread 8 of its keys: memory gives each score once and takes each result once.
#pragma once

#include "trireme/kernels/gpu_rows.h"

namespace trireme {

inline constexpr int64_t kScoreTile_keys = 2048;  // of a row, at most

// What row r of each head sees of a tile: keys [begin + r, end + r), or to the tile's border where there is no bound.
struct TileBand {
  int64_t keys = 0;  // of the tile; what lies behind them in a row pads it
  bool has_begin = false, has_end = false;
  int64_t begin = 0, end = 0;
};

struct ScoreTile {
  int64_t rows = 0;  // of all heads, head after head: below 2^31
  int64_t rows_of_head = 0;
  int64_t row_keys = 0;  // from row to row: a multiple of 8, at most kScoreTile_keys
  TileBand band;
  float scale = 1;
  float cap = 0;  // 0: none
};

// Of a row that has met no key yet.
inline constexpr float kNoKeysYet = -1;

struct RunningRows {
  float* max;      // minus infinity at first
  float* sum;      // kNoKeysYet at first
  float* rescale;  // out
};

// Computed in fp32; p and ds are of `number`. scores [rows, row_keys] -> p of the same sizes, which may be the scores where both are fp32. All lie at multiples of
// 16 bytes. `stream`: a cudaStream_t of the current device. The caller asks cudaGetLastError.
void launch_softmax_tile(const ScoreTile& tile, GpuNumber number, const float* scores, void* p,
                         const RunningRows& running, void* stream);
// scores, d_p -> p, ds, each of which may lie where they do. lse and delta [rows]. A row that sees no key has
// zeros.
void launch_gradient_tile(const ScoreTile& tile, GpuNumber number, const float* scores, const float* d_p,
                          void* p, void* d_s, const float* lse, const float* delta, void* stream);

}  // namespace trireme
