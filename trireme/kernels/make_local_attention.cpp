// Which kernel serves which device and dtype.
#include <optional>

#include "trireme/base/error.h"
#include "trireme/kernels/cpu_flash_attention.h"
#include "trireme/kernels/cuda_calls.h"
#include "trireme/kernels/cuda_kernels.h"
#include "trireme/kernels/reference_attention.h"

namespace trireme {

namespace {

using Kernel = std::unique_ptr<LocalAttention>;

bool is_half_precision(at::ScalarType dtype) {
  return dtype == at::kHalf || dtype == at::kBFloat16;
}

Kernel cpu_flash(at::ScalarType dtype, SampleLengths /*lengths*/) {
  return std::make_unique<CpuFlashAttention>(dtype);
}

void demand_cuda() {
  if (!at::hasCUDA())
    throw ConfigError(
        "attention on CUDA: this build has no CUDA half, or the machine has no GPU; build with "
        "TRIREME_CUDA=ON "
        "(./dev build cuda), or use --device cpu");
}

// Each call goes to the first of the kernels that takes it.
template <typename... CallKernels>
Kernel cuda_calls(CallKernels... kernels) {
  demand_cuda();
  std::vector<std::unique_ptr<CallKernel>> list;
  (list.push_back(std::move(kernels)), ...);
  return std::make_unique<CallsAttention>(std::move(list));
}

void demand_16_bits(AttentionKernel kernel, at::ScalarType dtype) {
  if (!is_half_precision(dtype))
    throw ConfigError(cat("attention kernel '", name_of(kernel), "' on CUDA: got ", dtype,
                          ", expected bf16 or fp16; use --bf16, or --attention 'reference' or 'auto'"));
}

template <AttentionKernel kernel, auto make_kernel>
Kernel cuda_in_16_bits(at::ScalarType dtype, SampleLengths lengths) {
  demand_16_bits(kernel, dtype);
  return cuda_calls(make_kernel(lengths));
}

Kernel flash4(at::ScalarType dtype, SampleLengths /*lengths*/) {
  if (dtype != at::kBFloat16)
    throw ConfigError(
        cat("attention kernel 'flash4': got ", dtype, ", expected bf16; use --bf16, or --attention auto"));
  return cuda_calls(make_flash4_kernel(make_flash4_runner()));
}

// Whole samples by libtorch's calls of cuDNN; documents, windows and parts of a ring by graphs of our own.
Kernel cudnn_packed(at::ScalarType dtype, SampleLengths lengths) {
  demand_16_bits(AttentionKernel::cudnn_packed, dtype);
  demand_cuda();
  return cuda_calls(make_cudnn_kernel({.lengths = lengths, .least_pair_values = kNeverAlone}),
                    make_cudnn_packed_kernel(make_cudnn_graph_runner()));
}

Kernel automatic_on_cpu(at::ScalarType dtype, SampleLengths lengths) {
  if (dtype == at::kFloat || is_half_precision(dtype)) return cpu_flash(dtype, lengths);
  return std::make_unique<ReferenceAttention>(cat("flash on the CPU has no ", dtype));
}

Kernel automatic_on_cuda(at::ScalarType dtype, SampleLengths lengths) {
  if (dtype == at::kFloat) return cuda_calls(make_cuda_efficient_kernel(), make_reference_call_kernel());
  if (dtype == at::kBFloat16 && flash4_lacks().empty())
    return cuda_calls(make_flash4_kernel(make_flash4_runner()), make_cudnn_kernel({.lengths = lengths}),
                      make_cuda_flash_kernel(), make_cuda_wide_heads_kernel());
  if (is_half_precision(dtype))
    return cuda_calls(make_cudnn_kernel({.lengths = lengths}), make_cuda_flash_kernel(),
                      make_cuda_wide_heads_kernel());
  return std::make_unique<ReferenceAttention>(cat("CUDA kernels have no ", dtype));
}

struct KernelOfDevice {
  AttentionKernel kernel;
  std::optional<at::DeviceType> device;  // none: any
  Kernel (*make)(at::ScalarType dtype, SampleLengths lengths);
};
const KernelOfDevice kKernels[] = {
    {AttentionKernel::automatic, at::kCPU, automatic_on_cpu},
    {AttentionKernel::automatic, at::kCUDA, automatic_on_cuda},
    {AttentionKernel::flash, at::kCPU, cpu_flash},
    {AttentionKernel::flash, at::kCUDA,
     cuda_in_16_bits<AttentionKernel::flash,
                     [](SampleLengths /*lengths*/) { return make_cuda_flash_kernel(); }>},
    {AttentionKernel::flash4, at::kCUDA, flash4},
    {AttentionKernel::cudnn, at::kCUDA,
     cuda_in_16_bits<AttentionKernel::cudnn,
                     [](SampleLengths lengths) { return make_cudnn_kernel({.lengths = lengths}); }>},
    {AttentionKernel::cudnn_packed, at::kCUDA, cudnn_packed},
    {AttentionKernel::reference, std::nullopt,
     [](at::ScalarType /*dtype*/, SampleLengths /*lengths*/) -> Kernel {
       return std::make_unique<ReferenceAttention>();
     }},
};

}  // namespace

bool is_by_reference(const std::string& attention_name) {
  return attention_name.substr(0, attention_name.find(';')).find("reference") != std::string::npos;
}

std::unique_ptr<LocalAttention> make_local_attention(AttentionKernel kernel, at::Device device,
                                                     at::ScalarType dtype, SampleLengths lengths) {
  if (!at::isFloatingType(dtype))
    throw ConfigError(cat("attention: got dtype ", dtype, ", expected a floating type"));
  std::string others;
  for (const KernelOfDevice& known : kKernels) {
    if (known.device && *known.device != device.type()) continue;
    if (known.kernel == kernel) return known.make(dtype, lengths);
    others += cat(others.empty() ? "'" : ", '", name_of(known.kernel), "'");
  }
  throw ConfigError(
      cat("attention kernel '", name_of(kernel), "': got device ", device, ", which has ", others));
}

}  // namespace trireme
