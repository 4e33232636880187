// Which kernels on CUDA, in which order.
#include "trireme/attention/cuda_attention.h"

#include "trireme/attention/cuda_kernels.h"
#include "trireme/base/error.h"

namespace trireme {

std::unique_ptr<LocalAttention> make_cuda_attention(AttentionKernel kernel, at::ScalarType dtype) {
  const bool half = dtype == at::kHalf || dtype == at::kBFloat16;
  const bool automatic = kernel == AttentionKernel::automatic;
  if (!half && !(automatic && dtype == at::kFloat))
    throw ConfigError(cat("attention kernels 'cudnn' and 'flash' on CUDA: got ", dtype,
                          ", expected bf16 or fp16; use --bf16, or --attention 'reference' or 'auto'"));
  std::vector<std::unique_ptr<CallKernel>> kernels;
  kernels.reserve(2);
  if (half) {
    if (kernel != AttentionKernel::flash) kernels.push_back(make_cudnn_kernel());
    if (kernel != AttentionKernel::cudnn) kernels.push_back(make_cuda_flash_kernel());
  } else {
    kernels.push_back(make_cuda_efficient_kernel());
    kernels.push_back(make_reference_call_kernel());
  }
  return std::make_unique<CallsAttention>(std::move(kernels));
}

}  // namespace trireme
