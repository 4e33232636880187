// Attention on CUDA devices, by calls (cuda_calls.h) of kernels (cuda_kernels.h). fp16 and bf16: cuDNN's fused
// attention, and FlashAttention-2, which knows every mask but block-sparse ones. They sum in fp32 and round to the
// inputs' dtype; results asked for in fp32 are converted after that. fp32: memory-efficient attention, and for few rows
// of the masks that it lacks the reference kernel.
#pragma once

#include "trireme/attention/local_attention.h"

namespace trireme {

// `kernel` is cudnn, flash or automatic: each call goes to the first of the kernels of `dtype` that knows its mask.
// Throws ConfigError: a dtype that the kernels lack, an environment that cuDNN's kernel cannot be used in, or a build
// without CUDA.
std::unique_ptr<LocalAttention> make_cuda_attention(AttentionKernel kernel, at::ScalarType dtype);

}  // namespace trireme
