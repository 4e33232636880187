// Extents of the fp32 dq that FlashAttention-2's backward on CUDA allocates (libtorch's flash_api.cpp). The
// kernel's calls are cut by them, and the memory forecast counts by them. No torch here.
#pragma once

#include <cstdint>

#include "trireme/base/round_up.h"

namespace trireme {

constexpr int64_t kDqRowBlock = 128;

constexpr int64_t padded_dq_width(int64_t width) {
  return round_up(width, width <= 128 ? 32 : 64);
}

}  // namespace trireme
