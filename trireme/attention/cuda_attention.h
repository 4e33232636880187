// Attention on CUDA devices through two kernels of libtorch, each called by its own name, never through a
// dispatcher that may choose another: cuDNN's fused attention, and FlashAttention-2, which also knows
// windows. fp16 and bf16 only; head width a multiple of 8.
#pragma once

#include "trireme/attention/local_attention.h"

namespace trireme {

// `kernel` is cudnn, flash or automatic (cuDNN; flash where a call has a window). Throws ConfigError: a dtype
// that the kernels lack, or a build without CUDA.
std::unique_ptr<LocalAttention> make_cuda_attention(AttentionKernel kernel, at::ScalarType dtype);

}  // namespace trireme
