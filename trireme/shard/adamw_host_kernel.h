// The loop behind adamw_host.cpp, one for each x86-64 level.
#pragma once

#include "trireme/device/simd_level.h"
#include "trireme/shard/adamw_kernel.h"

namespace trireme {

TRIREME_SIMD_KERNEL(void step_adamw(const AdamwSpan<float>& span, const AdamwStep& step);
                    void step_adamw(const AdamwSpan<Bf16>& span, const AdamwStep& step))

}  // namespace trireme
