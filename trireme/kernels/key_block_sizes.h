// How long attention is cut into blocks of keys (key_blocks.h). The kernel cuts by these sizes, and the
// memory forecast counts by them. No torch here.
#pragma once

#include <algorithm>
#include <cstdint>

#include "trireme/base/round_up.h"

namespace trireme {

// Keys and values of one head in a block, in 16 bits. They lie in the cache of an A100 (40 MB) or an H100
// (50); measured on an H200.
inline constexpr int64_t kKeyBlock_bytes = int64_t{32} << 20;

// 65,536 of heads 128 wide.
constexpr int64_t most_keys_of_block(int64_t width, int64_t bytes = kKeyBlock_bytes) {
  return bytes / (2 * 2 * std::max<int64_t>(1, width));
}

// Rows of each block but the last: even ones of at most `most`, rounded up to a kernel's tile.
constexpr int64_t block_rows(int64_t rows, int64_t most) {
  constexpr int64_t kRowsOfTile = 128;
  const int64_t blocks = std::max<int64_t>(1, round_up(rows, most) / most);
  return round_up(round_up(rows, blocks) / blocks, kRowsOfTile);
}

}  // namespace trireme
