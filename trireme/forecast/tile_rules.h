// Tokens of a tile where no option says them. No torch here.
#pragma once

#include <algorithm>
#include <cstdint>

namespace trireme {

// A layer's tile's widest tensor (gate|up) fills a few MiB: large enough for the matmuls, small enough for
// the caches.
constexpr int64_t tile_tokens_by_rule(int64_t intermediate, bool on_gpu) {
  const int64_t target_bytes = on_gpu ? int64_t{256} << 20 : int64_t{24} << 20;
  const int64_t tokens = target_bytes / (2 * intermediate * 4);
  return std::clamp<int64_t>(tokens / 64 * 64, 256, 65536);
}

// Of the head, by its logits.
constexpr int64_t logits_tile_tokens_by_rule(int64_t vocab, bool on_gpu) {
  const int64_t target_bytes = on_gpu ? int64_t{1} << 30 : int64_t{64} << 20;
  return std::clamp<int64_t>(target_bytes / (vocab * 4) / 16 * 16, 16, 16384);
}

}  // namespace trireme
