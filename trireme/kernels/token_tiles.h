// Cuts tokens into tiles: as few as `tile_tokens` allows, of nearly equal size, so that no short tile is left
// at the end. Large tiles begin at multiples of 256 tokens: a GPU makes products in blocks of so many rows,
// and a block that is not full takes as long. Arithmetic alone, for byte formulas too.
#pragma once

#include <algorithm>
#include <cstdint>

namespace trireme {

inline constexpr int64_t kTileStep_tokens = 256;

// Whether tiles of at most so many tokens begin at multiples of kTileStep_tokens: where that makes none of
// them much shorter than another.
constexpr bool tiles_are_stepped(int64_t tile_tokens) {
  return tile_tokens >= 8 * kTileStep_tokens && tile_tokens % kTileStep_tokens == 0;
}

constexpr int64_t tiles_of(int64_t tokens, int64_t tile_tokens) {
  return (tokens + tile_tokens - 1) / tile_tokens;
}

// First token of a tile, 0 <= tile <= tiles_of.
constexpr int64_t tile_begin(int64_t tokens, int64_t tile_tokens, int64_t tile) {
  const int64_t tiles = tiles_of(tokens, tile_tokens);
  if (!tiles_are_stepped(tile_tokens)) return tokens * tile / tiles;
  const int64_t even = (tokens * tile + tiles - 1) / tiles;
  return std::min(tokens, (even + kTileStep_tokens - 1) / kTileStep_tokens * kTileStep_tokens);
}

// Tokens of the largest tile. Of stepped ones the first is the largest.
constexpr int64_t largest_tile(int64_t tokens, int64_t tile_tokens) {
  if (tokens == 0) return 0;
  if (tiles_are_stepped(tile_tokens)) return tile_begin(tokens, tile_tokens, 1);
  const int64_t tiles = tiles_of(tokens, tile_tokens);
  return (tokens + tiles - 1) / tiles;
}

// Calls body(begin, count) for each tile of [0, tokens), in order.
template <typename Body>
void for_tiles(int64_t tokens, int64_t tile_tokens, const Body& body) {
  const int64_t tiles = tiles_of(tokens, tile_tokens);
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t begin = tile_begin(tokens, tile_tokens, tile);
    body(begin, tile_begin(tokens, tile_tokens, tile + 1) - begin);
  }
}

// The tiles of the ATen kernels in token_ops_aten.cpp: a tensor between two kernels has 32 MiB in fp32,
// enough for a GPU to be busy.
constexpr int64_t kRowBlock_elements = int64_t{1} << 23;

constexpr int64_t rows_of_block(int64_t row_elements) {
  return std::max<int64_t>(1, kRowBlock_elements / std::max<int64_t>(1, row_elements));
}

}  // namespace trireme
