// The kernel of narrow_adamw_kernel.cu, without CUDA's headers.
#pragma once

#include "trireme/shard/narrow_adamw.h"

namespace trireme {

// Runs on `stream`, a cudaStream_t of the current device. The span's pointers are of that device.
void launch_narrow_adamw(const NarrowAdamwSpan& span, const NarrowAdamwStep& step, void* stream);

}  // namespace trireme
