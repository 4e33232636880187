// Which kernel serves which device and dtype.
#include "trireme/attention/cpu_flash_attention.h"
#include "trireme/attention/cuda_attention.h"
#include "trireme/attention/reference_attention.h"
#include "trireme/base/error.h"

namespace trireme {

namespace {

bool is_half_precision(at::ScalarType dtype) {
  return dtype == at::kHalf || dtype == at::kBFloat16;
}

}  // namespace

std::unique_ptr<LocalAttention> make_local_attention(AttentionKernel kernel, at::Device device,
                                                     at::ScalarType dtype) {
  if (!at::isFloatingType(dtype))
    throw ConfigError(cat("attention: got dtype ", dtype, ", expected a floating type"));
  if (kernel == AttentionKernel::reference) return std::make_unique<ReferenceAttention>();
  if (!device.is_cpu() && !device.is_cuda())
    throw ConfigError(cat("attention: got device ", device,
                          ", which has 'reference' alone; the others are for cpu and cuda"));
  const bool automatic = kernel == AttentionKernel::automatic;
  if (device.is_cuda()) {
    if (automatic && dtype != at::kFloat && !is_half_precision(dtype))
      return std::make_unique<ReferenceAttention>(cat("CUDA kernels have no ", dtype));
    return make_cuda_attention(kernel, dtype);
  }
  if (kernel == AttentionKernel::cudnn)
    throw ConfigError("attention kernel 'cudnn': got a CPU device, which has 'flash' and 'reference'");
  if (automatic && dtype != at::kFloat && !is_half_precision(dtype))
    return std::make_unique<ReferenceAttention>(cat("flash on the CPU has no ", dtype));
  return std::make_unique<CpuFlashAttention>(dtype);
}

AttentionKernel parse_attention_kernel(const std::string& text) {
  if (text == "auto") return AttentionKernel::automatic;
  if (text == "flash") return AttentionKernel::flash;
  if (text == "cudnn") return AttentionKernel::cudnn;
  if (text == "reference") return AttentionKernel::reference;
  throw ConfigError(cat("attention kernel: got '", text, "', expected auto, flash, cudnn or reference"));
}

}  // namespace trireme
