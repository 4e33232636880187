// Bytes that the optimizer keeps of an element's master, and those that a step allocates where no kernel
// steps a share as it lies (adamw_kernel.h does): optimizer.cpp steps by these pieces, and the memory
// forecast counts by them. No torch here.
#pragma once

#include <algorithm>
#include <cstdint>

#include "trireme/kernels/split_master_bytes.h"
#include "trireme/memory/offload.h"

namespace trireme {

// Masters are the bits that bf16 values lack (master_share.h) where both are offloaded alike.
constexpr bool masters_are_split(bool bf16_values, Offload parameters, Offload optimizer) {
  return bf16_values && parameters == optimizer;
}
// Of an element, beside a value of `value_bytes`.
constexpr int64_t master_bytes(int64_t value_bytes, bool split) {
  return value_bytes == 4 ? 0 : split ? 2 : 4;
}

// Masters are joined and moments widened piece by piece, so that the fp32 copies stay small: in a core's
// cache, and beside the host as large as the calls of a device should be.
constexpr int64_t step_piece_elements(bool on_host) {
  return on_host ? int64_t{1} << 18 : kSplitPiece_elements;
}
// Of an element while stochastic_rounding.cpp rounds it in ATen's operations: four int64 tensors and one of
// 16 bits.
constexpr int64_t kRoundedInAten_bytes = 4 * 8 + 2;

// Of an element of these while adamw.cpp steps them in ATen's operations: a root in fp64 and in fp32.
constexpr int64_t kSteppedInAten_elements = int64_t{1} << 14;
constexpr int64_t kSteppedInAten_bytes = 8 + 4;

// Of the largest share: the fp32 copies of split masters and of moments of 16 bits, and beside the host what
// steps a piece, or makes or rounds one of them.
constexpr int64_t step_piece_bytes(int64_t share_elements, bool split, int moments, int64_t state_bytes,
                                   bool on_host) {
  const bool narrow = moments > 0 && state_bytes == 2;
  const int64_t copies = (split ? 4 : 0) + (narrow ? moments * int64_t{4} : 0);
  const int64_t piece = std::min(step_piece_elements(on_host), share_elements);
  if (on_host) return piece * copies;
  const int64_t made = piece * std::max(split ? kSplitInAten_bytes : 0, narrow ? kRoundedInAten_bytes : 0);
  const int64_t stepped =
      moments > 0 ? std::min(kSteppedInAten_elements, share_elements) * kSteppedInAten_bytes : 0;
  return piece * copies + std::max(made, stepped);
}

}  // namespace trireme
