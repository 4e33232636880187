// Bytes that AdamW allocates while it steps 16-bit moments without a kernel of their own (adamw_kernel.h):
// adamw.cpp steps by these pieces, and the memory forecast counts by them. No torch here.
#pragma once

#include <algorithm>
#include <cstdint>

namespace trireme {

// Moments are widened piece by piece, so that the fp32 copies stay small.
constexpr int64_t kNarrowPiece_elements = int64_t{1} << 20;
// Of an element while stochastic_rounding.cpp rounds it in ATen's operations: four int64 tensors and one of
// 16 bits.
constexpr int64_t kRoundedInAten_bytes = 4 * 8 + 2;

// Of the largest share: the fp32 copies of its moments, and what rounds one of them beside the host.
constexpr int64_t narrow_step_bytes(int64_t share_elements, int moments, bool on_host) {
  return std::min(kNarrowPiece_elements, share_elements) *
         (moments * 4 + (on_host ? 0 : kRoundedInAten_bytes));
}

}  // namespace trireme
