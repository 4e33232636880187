// AdamW with bf16 moments in one kernel a span (narrow_adamw.h), on the current stream of a CUDA device.
#pragma once

#include <ATen/ATen.h>

#include "trireme/shard/narrow_adamw.h"

namespace trireme {

// Whether this build has the kernel for tensors on `device`.
bool has_narrow_adamw(at::Device device);

// `span` points into `master`'s device. InternalError in a build without CUDA.
void step_narrow_adamw(const NarrowAdamwSpan& span, const NarrowAdamwStep& step, at::Device device);

}  // namespace trireme
