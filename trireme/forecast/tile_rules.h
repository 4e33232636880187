// Tokens of a tile where no option says them. No torch here.
#pragma once

#include <algorithm>
#include <cstdint>

#include "trireme/kernels/token_tiles.h"

namespace trireme {

// Below which tiles save little: no plan and no advice goes there.
constexpr int64_t kLeastTile_tokens = 16;

constexpr int64_t kGpuTile_bytes = int64_t{1} << 30;

// At most `most` and 1 GiB, in whole steps.
constexpr int64_t gpu_tile_tokens(int64_t token_bytes, int64_t most) {
  const int64_t tokens = kGpuTile_bytes / token_bytes / kTileStep_tokens * kTileStep_tokens;
  return std::clamp(tokens, kTileStep_tokens, most);
}

// Of a layer, by its widest tensor (gate|up) in fp32. On a CPU it fills a few MiB: large enough for the
// matmuls, small enough for the caches. On a GPU 8,192 tokens, so that the narrowest product of an 8B model
// is many waves of its blocks; fewer where gate|up would take more than 1 GiB.
constexpr int64_t tile_tokens_by_rule(int64_t intermediate, bool on_gpu) {
  const int64_t token_bytes = 2 * intermediate * 4;
  if (on_gpu) return gpu_tile_tokens(token_bytes, 8192);
  return std::clamp<int64_t>((int64_t{24} << 20) / token_bytes / 64 * 64, 256, 65536);
}

constexpr int64_t kCpuLogitsTile_bytes = int64_t{64} << 20;
// Of the head, by its logits in fp32.
constexpr int64_t logits_tile_tokens_by_rule(int64_t vocab, bool on_gpu) {
  if (on_gpu) return gpu_tile_tokens(vocab * 4, 16384);
  return std::clamp<int64_t>(kCpuLogitsTile_bytes / (vocab * 4) / 16 * 16, 16, 16384);
}

}  // namespace trireme
