// The two attention kernels of libtorch on CUDA, each called by its own name, never through a dispatcher that
// may choose another. fp16 and bf16 only; head width a multiple of 8.
#pragma once

#include <memory>

#include "trireme/attention/cuda_calls.h"

namespace trireme {

// FlashAttention-2: every call, head width up to 256.
std::unique_ptr<CallKernel> make_cuda_flash_kernel();
// cuDNN's fused attention: dense calls, full or causal and square, over all query rows or all key rows; head
// width up to 128.
std::unique_ptr<CallKernel> make_cudnn_kernel();

}  // namespace trireme
