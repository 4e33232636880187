// How many query heads one call of attention's backward takes on a GPU, in 16 bits. What a call holds beside
// its results grows with its heads: dq in fp32, a sum for each query, and with grouped heads dk and dv of
// every query head (libtorch's flash_api.cpp; cuDNN plans with the same). Heads do not depend on each other,
// and a few heads of a long sequence fill a GPU, so a long backward is several calls. Kernels cut by this
// rule, and the memory forecast counts by it. No torch here.
#pragma once

#include <algorithm>
#include <cstdint>

#include "trireme/kernels/mask_runs.h"

namespace trireme {

inline constexpr int64_t kMostFlashWidth = 256;  // of heads that FlashAttention takes in 16 bits

// 32K tokens of 32 heads of 128 over 8 key/value heads are one call, 128K are four.
inline constexpr int64_t kBackwardCall_bytes = int64_t{5} << 28;

// Of one query head, of `rows` query rows and `keys` key rows of all samples.
constexpr int64_t backward_head_bytes(int64_t rows, int64_t keys, int64_t width, bool grouped,
                                      int64_t element_bytes = 2) {
  return rows * (padded_dq_width(width) + 1) * 4 + (grouped ? 2 * keys * width * element_bytes : 0);
}

// Whole groups of query heads, one at least; calls as even as can be.
constexpr int64_t backward_heads(int64_t rows, int64_t keys, int64_t query_heads, int64_t kv_heads,
                                 int64_t width, int64_t most_bytes = kBackwardCall_bytes) {
  if (query_heads == 0 || kv_heads == 0) return query_heads;
  const int64_t group = round_up(query_heads, kv_heads) / kv_heads;
  const int64_t group_bytes = std::max<int64_t>(1, group * backward_head_bytes(rows, keys, width, group > 1));
  const int64_t most_groups = std::clamp<int64_t>(most_bytes / group_bytes, 1, kv_heads);
  const int64_t calls = round_up(kv_heads, most_groups) / most_groups;
  return std::min(query_heads, round_up(kv_heads, calls) / calls * group);
}

}  // namespace trireme
