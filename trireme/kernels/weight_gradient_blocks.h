// What the CPU's bf16 weight gradients (cpu_weight_gradient.h) copy at a time. The kernel allocates by these
// sizes, and the memory forecast counts by them. No torch here.
#pragma once

#include <cstdint>

#include "trireme/base/round_up.h"
#include "trireme/kernels/cpu_flash_tiles.h"

namespace trireme {

constexpr int64_t kGradientDepth_tokens = 512;  // that are summed at a time
constexpr int64_t kGradientRows = 64;           // of the weight, that a thread works on at a time

// Of x [tokens, k] in panels, for all threads.
constexpr int64_t gradient_panels_bytes(int64_t k) {
  return kGradientDepth_tokens * round_up(k, kPanel) * 2;
}
// Of dy transposed, of one thread.
constexpr int64_t gradient_rows_bytes() {
  return kGradientDepth_tokens * kGradientRows * 2;
}

}  // namespace trireme
