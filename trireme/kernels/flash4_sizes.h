// What FlashAttention-4 takes on Hopper, and the rows of what a call of its backward holds beside its results:
//
//   dq       fp32, in whole tiles of queries; of each row delta and the log-sum-exp in bits
//   dk, dv   fp32, in whole tiles of keys, where query heads share a key/value head: half of what other
//            kernels hold with four query heads, as much with two
//
// A call takes as many heads as one of the other kernels (backward_heads.h). The kernel sizes its sums by these
// rows. The memory forecast counts what other kernels hold, and the second sum of each query. No torch here.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string>

#include "trireme/base/joined.h"
#include "trireme/base/round_up.h"

namespace trireme {

// Rows of a tile of queries and of keys in backward (_tile_size_bwd_sm90 of flash-attn-4's interface.py;
// cmake/flash4/export_kernels.py compares).
struct Flash4Width {
  int64_t width, tile_q_causal, tile_q_full, tile_k;
};
inline constexpr std::array<Flash4Width, 3> kFlash4Widths{
    {{64, 128, 128, 128}, {128, 64, 80, 128}, {256, 64, 64, 48}}};
// Query heads of a key/value head: a kernel is compiled for each number up to this.
inline constexpr int64_t kFlash4MostGroup = 8;

constexpr const Flash4Width* flash4_width(int64_t width) {
  for (const Flash4Width& known : kFlash4Widths)
    if (known.width == width) return &known;
  return nullptr;
}

constexpr bool flash4_takes_heads(int64_t query_heads, int64_t kv_heads, int64_t width) {
  return flash4_width(width) != nullptr && query_heads <= kFlash4MostGroup * kv_heads;
}

// "64, 128, 256"
inline std::string flash4_widths() {
  return joined(kFlash4Widths, ", ", &Flash4Width::width);
}

// Elements of a sum of one head: flash-attn-4 counts them in 32 bits.
inline constexpr int64_t kFlash4MostSum = std::numeric_limits<int32_t>::max();

// Rows of a sum of one head.
constexpr int64_t flash4_q_rows(const Flash4Width& width, int64_t rows, bool causal) {
  return round_up(rows, causal ? width.tile_q_causal : width.tile_q_full);
}
constexpr int64_t flash4_k_rows(const Flash4Width& width, int64_t rows) {
  return round_up(rows, width.tile_k);
}

}  // namespace trireme
