// Tokens of a tile where no option says them. No torch here.
#pragma once

#include <algorithm>
#include <cstdint>

#include "trireme/base/round_up.h"
#include "trireme/forecast/forecast_inputs.h"
#include "trireme/kernels/token_tiles.h"

namespace trireme {

// Below which tiles save little: no plan and no advice goes there.
constexpr int64_t kLeastTile_tokens = 16;

// Of an expert, on average, that a tile is to have.
constexpr double kGpuExpertRows = 1024, kCpuExpertRows = 64;

constexpr int64_t kGpuTile_bytes = int64_t{1} << 30;

// At most `most` and 1 GiB, in whole steps.
constexpr int64_t gpu_tile_tokens(int64_t token_bytes, int64_t most) {
  const int64_t tokens = kGpuTile_bytes / token_bytes / kTileStep_tokens * kTileStep_tokens;
  return std::clamp(tokens, kTileStep_tokens, most);
}

// Of a layer, by its widest tensor in fp32: gate|up, of a mixture perhaps the rows of its experts. On a CPU it fills a few MiB: large enough for the
// matmuls, small enough for the caches. On a GPU 8,192 tokens, so that the narrowest product of an 8B model
// is many waves of its blocks; fewer where that tensor would take more than 1 GiB. Of a mixture, whose experts
// each see one of `tokens_per_expert_row` tokens, as many as give each the rows of a product worth its call
// and worth reading its weights, and adding to their gradients, once more.
constexpr int64_t tile_tokens_by_rule(int64_t mlp_width, bool on_gpu, double tokens_per_expert_row = 1) {
  const int64_t token_bytes = 2 * mlp_width * 4;
  const auto for_experts = [&](double rows, int64_t step) {
    return round_up(static_cast<int64_t>(rows * std::min(tokens_per_expert_row, 65536 / rows)), step);
  };
  if (on_gpu)
    return gpu_tile_tokens(token_bytes,
                           std::max<int64_t>(8192, for_experts(kGpuExpertRows, kTileStep_tokens)));
  const int64_t least = std::max<int64_t>(256, for_experts(kCpuExpertRows, 64));
  return std::clamp<int64_t>((int64_t{24} << 20) / token_bytes / 64 * 64, least, 65536);
}

inline int64_t tile_tokens_by_rule(const ModelSizes& model, bool on_gpu) {
  const int64_t rows_width = model.experts > 0 ? model.experts_per_token * model.hidden : 0;
  const int64_t widest = std::max(
      {model.mlps_per_token() * model.intermediate, model.shared_intermediate, model.sharing_intermediate});
  return tile_tokens_by_rule(std::max(widest, rows_width / 2), on_gpu, model.tokens_per_expert_row());
}

constexpr int64_t kCpuLogitsTile_bytes = int64_t{64} << 20;
// Of the head, by its logits in fp32.
constexpr int64_t logits_tile_tokens_by_rule(int64_t vocab, bool on_gpu) {
  if (on_gpu) return gpu_tile_tokens(vocab * 4, 16384);
  return std::clamp<int64_t>(kCpuLogitsTile_bytes / (vocab * 4) / 16 * 16, 16, 16384);
}

}  // namespace trireme
