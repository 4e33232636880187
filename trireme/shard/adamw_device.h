// AdamW in one kernel a span (adamw_kernel.h): on the current stream of a CUDA device, or on all threads of
// the host.
#pragma once

#include <ATen/ATen.h>

#include "trireme/shard/adamw_kernel.h"

namespace trireme {

// Whether this build has the kernel for tensors on `device`, which is no CPU. Tests have devices without one.
bool has_adamw_kernel(at::Device device);

// `span` points into `device`. InternalError in a build without CUDA.
void step_adamw(const AdamwSpan<float>& span, const AdamwStep& step, at::Device device);
void step_adamw(const AdamwSpan<Bf16>& span, const AdamwStep& step, at::Device device);
// `span` points into the host's memory.
void step_adamw_on_host(const AdamwSpan<float>& span, const AdamwStep& step);
void step_adamw_on_host(const AdamwSpan<Bf16>& span, const AdamwStep& step);

}  // namespace trireme
