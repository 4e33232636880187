// Attention on CUDA devices, by calls (cuda_calls.h) of two kernels (cuda_kernels.h): cuDNN's fused
// attention, and FlashAttention-2, which knows every mask but block-sparse ones. fp16 and bf16 only. Kernels
// sum in fp32 and round to the inputs' dtype; results asked for in fp32 are converted after that.
#pragma once

#include "trireme/attention/local_attention.h"

namespace trireme {

// `kernel` is cudnn, flash or automatic: each call goes to cuDNN where that knows its mask, else to flash.
// Throws ConfigError: a dtype that the kernels lack, or a build without CUDA.
std::unique_ptr<LocalAttention> make_cuda_attention(AttentionKernel kernel, at::ScalarType dtype);

}  // namespace trireme
