// FlashAttention-2 (arXiv 2307.08691) through libtorch. Its masks are bands as they are in mask_runs.h; a
// segment without keys gives o = 0 and lse = +infinity, one without rows dk = dv = 0, and what lies in no
// segment is not written.
//
// Its backward computes offsets into the fp32 dq in 32 bits (flash_bwd_kernel.h of 2.7.4:
// row_offset_dq_accum, and BlockInfo::q_offset, whose type follows its arguments'): rows x heads x width,
// where rows are those of all samples in blocks of 128, or of all segments and 128 more for each. What
// exceeds that is cut into fewer heads.
#include <algorithm>
#include <optional>

#include "trireme/base/error.h"
#include "trireme/base/round_up.h"
#include "trireme/kernels/cuda_kernels.h"

namespace trireme {

namespace {

std::optional<at::Tensor> if_defined(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt;
}

int64_t dq_rows(const MaskCall& call) {
  const int64_t samples = call.sample_end - call.sample;
  if (call.dense()) return samples * round_up(call.rows(), kDqRowBlock);
  return samples * call.rows() + kDqRowBlock * static_cast<int64_t>(call.cu_q.size() - 1);
}

class CudaFlashKernel final : public CallKernel {
 public:
  CudaFlashKernel(int64_t most_dq_elements, int64_t backward_call_bytes)
      : most_dq_elements_(most_dq_elements), backward_call_bytes_(backward_call_bytes) {}

  std::string name() const override { return "flash (CUDA, FlashAttention-2)"; }

  // Half of the bound is left to the rows.
  int64_t most_segments(const AttentionSizes& sizes) const override {
    const int64_t elements = kDqRowBlock * sizes.query_heads * padded_dq_width(sizes.width);
    return std::clamp<int64_t>(most_dq_elements_ / 2 / elements, 1, kMostSegments);
  }

  std::string refusal(const MaskCall& call, const AttentionSizes& sizes) const override {
    if (sizes.width % 8 != 0 || sizes.width > kMostFlashWidth)
      return cat("got head width ", sizes.width, ", expected a multiple of 8 up to ", kMostFlashWidth,
                 "; use --attention reference");
    if (heads_of(call, sizes).most_query_heads == 0)
      return cat("got ", dq_rows(call), " query rows of width ", sizes.width,
                 ", of which it counts the elements in 32 bits; use a smaller batch or more ranks");
    return {};
  }

  HeadsOfCall heads_of(const MaskCall& call, const AttentionSizes& sizes) const override {
    const int64_t heads = most_dq_elements_ / (dq_rows(call) * padded_dq_width(sizes.width));
    return {std::min(heads, sizes.query_heads)};
  }

  HeadsOfCall backward_heads_of(const MaskCall& call, const AttentionSizes& sizes) const override {
    const int64_t keys = (call.sample_end - call.sample) * call.keys();
    return {std::min(heads_of(call, sizes).most_query_heads,
                     backward_heads(dq_rows(call), keys, sizes.query_heads, sizes.kv_heads, sizes.width,
                                    backward_call_bytes_))};
  }

  AttentionOutput forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const KernelMask& mask) override {
    // longest_q is a bound. Told of single rows, libtorch takes a path for decoding, which asks for one in
    // each segment.
    const auto result =
        at::_flash_attention_forward(q, k, v, if_defined(mask.cu_q), if_defined(mask.cu_k),
                                     std::max<int64_t>(2, mask.longest_q), mask.longest_k,
                                     /*dropout_p=*/0.0, mask.band.causal(), /*return_debug_mask=*/false,
                                     mask.scores.scale, mask.band.left, mask.band.right);
    return {std::get<0>(result), std::get<1>(result)};
  }

  AttentionGradients backward(const at::Tensor& d_o, const at::Tensor& q, const at::Tensor& k,
                              const at::Tensor& v, const AttentionOutput& saved,
                              const KernelMask& mask) override {
    const at::Tensor seed = at::zeros({2}, q.options().dtype(at::kUInt64)),
                     unused = at::empty({0}, q.options());
    const auto [dq, dk, dv] = at::_flash_attention_backward(
        d_o, q, k, v, saved.o, saved.lse, mask.cu_q, mask.cu_k, mask.longest_q, mask.longest_k,
        /*dropout_p=*/0.0, mask.band.causal(), seed, unused, mask.scores.scale, mask.band.left,
        mask.band.right);
    return {dq, dk, dv};
  }

 private:
  int64_t most_dq_elements_, backward_call_bytes_;
};

}  // namespace

std::unique_ptr<CallKernel> make_cuda_flash_kernel(int64_t most_dq_elements, int64_t backward_call_bytes) {
  return std::make_unique<CudaFlashKernel>(most_dq_elements, backward_call_bytes);
}

}  // namespace trireme
