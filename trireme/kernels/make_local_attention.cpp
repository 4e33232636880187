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

// What a kernel is made for.
struct Wanted {
  at::ScalarType dtype;
  SampleLengths lengths;
  Scores scores;
};

Kernel cpu_flash(const Wanted& wanted) {
  return std::make_unique<CpuFlashAttention>(wanted.dtype);
}

void demand_cuda() {
  if (!at::hasCUDA())
    throw ConfigError(
        "attention on CUDA: this build has no CUDA half, or the machine has no GPU; build with "
        "TRIREME_CUDA=ON (./dev build cuda), or use --device cpu");
}

// Each call goes to the first of the kernels that takes it.
template <typename... CallKernels>
Kernel cuda_calls(CallKernels... kernels) {
  demand_cuda();
  return attention_by_calls(std::move(kernels)...);
}

void demand_16_bits(AttentionKernel kernel, at::ScalarType dtype) {
  if (!is_half_precision(dtype))
    throw ConfigError(cat("attention kernel '", name_of(kernel), "' on CUDA: got ", dtype,
                          ", expected bf16 or fp16; use --bf16, or --attention 'reference' or 'auto'"));
}

Kernel cuda_flash(const Wanted& wanted) {
  demand_16_bits(AttentionKernel::flash, wanted.dtype);
  return cuda_calls(make_cuda_flash_kernel());
}

Kernel cudnn(const Wanted& wanted) {
  demand_16_bits(AttentionKernel::cudnn, wanted.dtype);
  return cuda_calls(make_cudnn_kernel({.lengths = wanted.lengths}));
}

Kernel flash4(const Wanted& wanted) {
  if (wanted.dtype != at::kBFloat16)
    throw ConfigError(cat("attention kernel 'flash4': got ", wanted.dtype,
                          ", expected bf16; use --bf16, or --attention auto"));
  return cuda_calls(make_flash4_kernel(make_flash4_runner()));
}

// Whole samples by libtorch's calls of cuDNN; documents, windows and parts of a ring by graphs of our own.
Kernel cudnn_packed(const Wanted& wanted) {
  demand_16_bits(AttentionKernel::cudnn_packed, wanted.dtype);
  demand_cuda();
  return cuda_calls(make_cudnn_kernel({.lengths = wanted.lengths, .least_pair_values = kNeverAlone}),
                    make_cudnn_packed_kernel(make_cudnn_graph_runner()));
}

Kernel automatic_on_cpu(const Wanted& wanted) {
  if (wanted.dtype == at::kFloat || is_half_precision(wanted.dtype)) return cpu_flash(wanted);
  return std::make_unique<ReferenceAttention>(cat("flash on the CPU has no ", wanted.dtype));
}

Kernel tiles(const Wanted& wanted) {
  if (wanted.dtype == at::kDouble)
    throw ConfigError(
        "attention kernel 'tiles': got fp64, expected fp32, bf16 or fp16; use --attention reference");
  return cuda_calls(make_cuda_tiles_kernel());
}

Kernel automatic_on_cuda(const Wanted& wanted) {
  const auto& [dtype, lengths, scores] = wanted;
  if (scores == Scores::capped && (dtype == at::kFloat || is_half_precision(dtype))) return tiles(wanted);
  if (dtype == at::kFloat) return cuda_calls(make_cuda_efficient_kernel(), make_cuda_tiles_kernel());
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
  Kernel (*make)(const Wanted& wanted);
};
const KernelOfDevice kKernels[] = {
    {AttentionKernel::automatic, at::kCPU, automatic_on_cpu},
    {AttentionKernel::automatic, at::kCUDA, automatic_on_cuda},
    {AttentionKernel::flash, at::kCPU, cpu_flash},
    {AttentionKernel::flash, at::kCUDA, cuda_flash},
    {AttentionKernel::flash4, at::kCUDA, flash4},
    {AttentionKernel::cudnn, at::kCUDA, cudnn},
    {AttentionKernel::cudnn_packed, at::kCUDA, cudnn_packed},
    {AttentionKernel::tiles, at::kCUDA, tiles},
    {AttentionKernel::reference, std::nullopt,
     [](const Wanted& /*wanted*/) -> Kernel { return std::make_unique<ReferenceAttention>(); }},
};

}  // namespace

std::unique_ptr<LocalAttention> make_local_attention(AttentionKernel kernel, at::Device device,
                                                     at::ScalarType dtype, SampleLengths lengths,
                                                     Scores scores) {
  if (!at::isFloatingType(dtype))
    throw ConfigError(cat("attention: got dtype ", dtype, ", expected a floating type"));
  if (scores == Scores::capped && device.is_cuda()) check_caps_scores(kernel);
  std::string others;
  for (const KernelOfDevice& known : kKernels) {
    if (known.device && *known.device != device.type()) continue;
    if (known.kernel == kernel) return known.make({dtype, lengths, scores});
    others += cat(others.empty() ? "'" : ", '", name_of(known.kernel), "'");
  }
  throw ConfigError(
      cat("attention kernel '", name_of(kernel), "': got device ", device, ", which has ", others));
}

}  // namespace trireme
