// Memory-efficient attention (arXiv 2112.05682, xFormers' kernels) through libtorch, for fp32, and in 16 bits
// for heads that are wider than other kernels take. It knows no grouped heads: a key/value head's query heads
// are one call, in which that head is seen as many (stride 0), and the parts of dk and dv are summed. Its
// log-sum-exp has rows in blocks of 32, those beyond the last infinite.
#include <algorithm>
#include <limits>
#include <optional>

#include "trireme/base/error.h"
#include "trireme/base/round_up.h"
#include "trireme/kernels/cuda_kernels.h"

namespace trireme {

namespace {

constexpr int64_t kLseBlock = 32;
constexpr int64_t kMostWidth = 512;  // the kernel of 256 has no bound, Gemma 4's is the widest that is tested

// sdp::CustomMaskType of libtorch. From the bottom right, a row's diagonal is where Band's is.
constexpr int64_t kFull = 0;
constexpr int64_t kCausalFromBottomRight = 2;

int64_t mask_type(const Band& band) {
  return band.causal() ? kCausalFromBottomRight : kFull;
}

// Rows' offsets are computed in 32 bits (kernel_forward.h: iter_key_start * k_strideM): a view that steps
// over more than that becomes a copy.
at::Tensor countable(const at::Tensor& x_bshD) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  return x_bshD.size(1) * x_bshD.stride(1) <= kMost ? x_bshD : x_bshD.contiguous();
}

at::Tensor for_each_query_head(const at::Tensor& x_btkD, int64_t query_heads) {
  if (x_btkD.size(2) == query_heads) return countable(x_btkD);
  return countable(x_btkD).expand({-1, -1, query_heads, -1});
}

at::Tensor summed(const at::Tensor& grad_bthD, int64_t kv_heads) {
  return grad_bthD.size(2) == kv_heads ? grad_bthD : grad_bthD.sum(2, /*keepdim=*/true);
}

class CudaEfficientKernel final : public CallKernel {
 public:
  explicit CudaEfficientKernel(bool fp32) : fp32_(fp32) {}

  std::string name() const override { return cat("efficient (CUDA, ", fp32_ ? "fp32" : "16 bits", ")"); }
  int64_t least_width() const override { return fp32_ ? 1 : kMostFlashWidth + 1; }
  int64_t most_segments(const AttentionSizes& /*sizes*/) const override { return 1; }

  std::string refusal(const MaskCall& call, const AttentionSizes& sizes) const override {
    const char* const kInstead = "; use --attention tiles";
    const int64_t unit = fp32_ ? 4 : 8;  // 16 bytes
    if (sizes.width % unit != 0 || sizes.width > kMostWidth)
      return cat("got head width ", sizes.width, ", expected a multiple of ", unit, " up to ", kMostWidth,
                 kInstead);
    if (!call.band.full() && !call.band.causal())
      return cat("got a window, which it does not know", kInstead);
    const int64_t rows = std::max(call.rows(), call.keys());
    if (most_heads(call, sizes) == 0)
      return cat("got ", rows, " rows of width ", sizes.width, ", of which it counts the elements in 32 bits",
                 kInstead);
    return {};
  }

  HeadsOfCall heads_of(const MaskCall& call, const AttentionSizes& sizes) const override {
    return {std::min(sizes.query_heads, most_heads(call, sizes)), /*many_groups=*/false};
  }

  AttentionOutput forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const KernelMask& mask) override {
    const int64_t heads = q.size(2);
    const auto result = at::_efficient_attention_forward(
        countable(q), for_each_query_head(k, heads), for_each_query_head(v, heads), /*bias=*/std::nullopt,
        /*cu_seqlens_q=*/std::nullopt, /*cu_seqlens_k=*/std::nullopt, /*max_seqlen_q=*/std::nullopt,
        /*max_seqlen_k=*/std::nullopt, /*dropout_p=*/0.0, mask_type(mask.band),
        /*compute_log_sumexp=*/true, mask.scores.scale);
    return {std::get<0>(result), std::get<1>(result).slice(2, 0, q.size(1))};
  }

  AttentionGradients backward(const at::Tensor& d_o, const at::Tensor& q, const at::Tensor& k,
                              const at::Tensor& v, const AttentionOutput& saved,
                              const KernelMask& mask) override {
    const int64_t heads = q.size(2), rows = q.size(1);
    const at::Tensor lse = at::constant_pad_nd(saved.lse, {0, round_up(rows, kLseBlock) - rows},
                                               std::numeric_limits<float>::infinity());
    const at::Tensor unused = at::zeros({}, at::TensorOptions(at::kLong));
    const auto result = at::_efficient_attention_backward(
        d_o.contiguous(), countable(q), for_each_query_head(k, heads), for_each_query_head(v, heads),
        /*bias=*/std::nullopt, saved.o.contiguous(), /*cu_seqlens_q=*/std::nullopt,
        /*cu_seqlens_k=*/std::nullopt, rows, k.size(1), lse, /*dropout_p=*/0.0, unused, unused,
        mask_type(mask.band), /*bias_requires_grad=*/false, mask.scores.scale);
    return {std::get<0>(result), summed(std::get<1>(result), k.size(2)),
            summed(std::get<2>(result), k.size(2))};
  }

 private:
  // Whose elements are counted in 32 bits.
  static int64_t most_heads(const MaskCall& call, const AttentionSizes& sizes) {
    return std::numeric_limits<int32_t>::max() / (std::max(call.rows(), call.keys()) * sizes.width);
  }

  bool fp32_;
};

}  // namespace

std::unique_ptr<CallKernel> make_cuda_efficient_kernel() {
  return std::make_unique<CudaEfficientKernel>(/*fp32=*/true);
}
std::unique_ptr<CallKernel> make_cuda_wide_heads_kernel() {
  return std::make_unique<CudaEfficientKernel>(/*fp32=*/false);
}

}  // namespace trireme
