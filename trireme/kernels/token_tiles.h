// Cuts tokens into tiles: as few as `tile_tokens` allows, of nearly equal size, so that no short tile is left
// at the end. Arithmetic alone, for byte formulas too.
#pragma once

#include <algorithm>
#include <cstdint>

namespace trireme {

// Tokens of the largest tile.
constexpr int64_t largest_tile(int64_t tokens, int64_t tile_tokens) {
  const int64_t tiles = std::max<int64_t>(1, (tokens + tile_tokens - 1) / tile_tokens);
  return (tokens + tiles - 1) / tiles;
}

// Calls body(begin, count) for each tile of [0, tokens), in order.
template <typename Body>
void for_tiles(int64_t tokens, int64_t tile_tokens, const Body& body) {
  if (tokens == 0) return;
  const int64_t tiles = (tokens + tile_tokens - 1) / tile_tokens;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t begin = tokens * tile / tiles;
    body(begin, tokens * (tile + 1) / tiles - begin);
  }
}

// The tiles of the ATen kernels in token_ops_aten.cpp: a tensor between two kernels has 32 MiB in fp32,
// enough for a GPU to be busy.
constexpr int64_t kRowBlock_elements = int64_t{1} << 23;

constexpr int64_t rows_of_block(int64_t row_elements) {
  return std::max<int64_t>(1, kRowBlock_elements / std::max<int64_t>(1, row_elements));
}

}  // namespace trireme
