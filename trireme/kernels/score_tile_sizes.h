// How attention by tiles is cut (cuda_tiles_kernel.cpp). The kernel cuts by these sizes, and the memory forecast counts
// by them. No torch here.
#pragma once

#include <algorithm>
#include <cstdint>

#include "trireme/base/round_up.h"
#include "trireme/kernels/score_tile_kernel.h"

namespace trireme {

// Of the tiles that exist at once.
inline constexpr int64_t kTilesAtOnce_bytes = int64_t{256} << 20;

struct ScoreTileSizes {
  int64_t rows;  // of each query head
  int64_t keys;  // a multiple of kChunk
};

// Of `heads` query heads together. Backward holds a tile's scores and their gradients, in fp32 and in 16 bits.
constexpr ScoreTileSizes score_tile_sizes(int64_t heads, int64_t rows, int64_t keys,
                                          int64_t most_bytes = kTilesAtOnce_bytes) {
  // More rows would compute ever more of what a window or the diagonal hides.
  constexpr int64_t kScore_bytes = 4 + 4 + 2 + 2, kRowsUnit = 64, kMostRows = 1024;
  const int64_t of_keys = std::min(kScoreTile_keys, round_up(std::max<int64_t>(1, keys), kChunk));
  const int64_t most =
      std::min(kMostRows, most_bytes / (kScore_bytes * std::max<int64_t>(1, heads) * of_keys));
  return {std::min(std::max<int64_t>(1, rows), std::max(kRowsUnit, most / kRowsUnit * kRowsUnit)), of_keys};
}

struct ScoreTileWorkspace {
  int64_t forward_bytes, backward_bytes;  // beside arguments and results
};

// Of a call of one sample at a time: its tiles, padded keys and values of one, a block's rows of q, o and d(o), and in
// backward all keys' dk and dv in fp32.
constexpr ScoreTileWorkspace score_tile_workspace(int64_t heads, int64_t kv_heads, int64_t width,
                                                  int64_t rows, int64_t keys, int64_t element_bytes) {
  constexpr int64_t kFp32 = 4;
  const ScoreTileSizes tile = score_tile_sizes(heads, rows, keys);
  const int64_t scores = heads * tile.rows * tile.keys, block = heads * tile.rows * width;
  const int64_t narrow =
      element_bytes < kFp32 ? element_bytes : 0;  // fp32 results take the place of their scores
  const int64_t padded = kv_heads * tile.keys * width * element_bytes;
  return {scores * (kFp32 + narrow) + block * (element_bytes + kFp32) + padded,
          2 * scores * (kFp32 + narrow) + block * (2 * element_bytes + kFp32) + 2 * padded +
              2 * keys * kv_heads * width * kFp32};
}

struct ScoreTraffic {
  int64_t forward_bytes, backward_bytes;
};

// What memory moves for one score, by products and kernels: forward a score in fp32 and its p are written and read;
// backward two such scores are, p, and ds, which is read twice.
constexpr ScoreTraffic score_traffic(int64_t element_bytes) {
  constexpr int64_t kFp32 = 4;
  return {2 * kFp32 + 2 * element_bytes, 4 * kFp32 + 5 * element_bytes};
}

}  // namespace trireme
