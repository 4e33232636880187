// FlashAttention-2 (arXiv 2307.08691) through libtorch. Its masks are bands as they are in mask_runs.h; a
// segment without keys gives o = 0 and lse = +infinity, one without rows dk = dv = 0, and what lies in no
// segment is not written.
#include <algorithm>
#include <optional>

#include "trireme/attention/cuda_kernels.h"
#include "trireme/base/error.h"

namespace trireme {

namespace {

std::optional<at::Tensor> if_defined(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt;
}

class CudaFlashKernel final : public CallKernel {
 public:
  std::string name() const override { return "flash (CUDA, FlashAttention-2)"; }

  std::string refusal(const MaskCall& /*call*/, const AttentionSizes& sizes) const override {
    if (sizes.width % 8 == 0 && sizes.width <= 256) return {};
    return cat("got head width ", sizes.width,
               ", expected a multiple of 8 up to 256; use --attention reference");
  }

  AttentionOutput forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const KernelMask& mask) override {
    // longest_q is a bound. Told of single rows, libtorch takes a path for decoding, which asks for one in
    // each segment.
    const auto result =
        at::_flash_attention_forward(q, k, v, if_defined(mask.cu_q), if_defined(mask.cu_k),
                                     std::max<int64_t>(2, mask.longest_q), mask.longest_k,
                                     /*dropout_p=*/0.0, mask.band.causal(), /*return_debug_mask=*/false,
                                     mask.scale, mask.band.left, mask.band.right);
    return {std::get<0>(result), std::get<1>(result)};
  }

  AttentionGradients backward(const at::Tensor& d_o, const at::Tensor& q, const at::Tensor& k,
                              const at::Tensor& v, const AttentionOutput& saved,
                              const KernelMask& mask) override {
    const at::Tensor seed = at::zeros({2}, q.options().dtype(at::kUInt64)),
                     unused = at::empty({0}, q.options());
    const auto [dq, dk, dv] = at::_flash_attention_backward(
        d_o, q, k, v, saved.o, saved.lse, mask.cu_q, mask.cu_k, mask.longest_q, mask.longest_k,
        /*dropout_p=*/0.0, mask.band.causal(), seed, unused, mask.scale, mask.band.left, mask.band.right);
    return {dq, dk, dv};
  }
};

}  // namespace

std::unique_ptr<CallKernel> make_cuda_flash_kernel() {
  return std::make_unique<CudaFlashKernel>();
}

}  // namespace trireme
