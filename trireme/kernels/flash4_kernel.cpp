// FlashAttention-4 (github.com/Dao-AILab/flash-attention, flash_attn/cute; on Hopper the algorithm of
// FlashAttention-3, arXiv 2407.08608). Its causal mask is aligned at the last key, as FlashAttention-2's is,
// and it needs no graph for a new size: it takes every dense call without a window. Inputs may be views.
#include <algorithm>
#include <array>

#include "trireme/base/error.h"
#include "trireme/kernels/cuda_kernels.h"
#include "trireme/kernels/flash4_sizes.h"

namespace trireme {

namespace {

class Flash4Kernel final : public CallKernel {
 public:
  Flash4Kernel(std::unique_ptr<Flash4Runner> runner, int64_t backward_call_bytes, int64_t least_pair_values)
      : runner_(std::move(runner)),
        backward_call_bytes_(backward_call_bytes),
        least_pair_values_(least_pair_values) {}

  std::string name() const override { return "flash4 (CUDA, FlashAttention-4)"; }

  int64_t least_tokens_alone(const RankHeads& heads) const override {
    return flash4_takes_heads(heads.largest_group, /*kv_heads=*/1, heads.width)
               ? trireme::least_tokens_alone(heads.query, heads.width, least_pair_values_)
               : kNeverAlone;
  }
  DenseLengths dense_lengths() const override { return DenseLengths::any; }

  std::string refusal(const MaskCall& call, const AttentionSizes& sizes) const override {
    constexpr const char* kInstead = "; use --attention flash or --attention auto";
    if (flash4_width(sizes.width) == nullptr)
      return cat("got head width ", sizes.width, ", expected one of ", flash4_widths(), kInstead);
    if (sizes.largest_group > kFlash4MostGroup)
      return cat("got ", sizes.largest_group, " query heads of one key/value head, expected ",
                 kFlash4MostGroup, " at most", kInstead);
    if (!call.dense()) return cat("got packed documents, which it does not know", kInstead);
    if (!call.band.full() && !call.band.causal())
      return cat("got a window, which it does not know", kInstead);
    const Flash4Width& width = *flash4_width(sizes.width);
    const int64_t q_rows = flash4_q_rows(width, call.rows(), call.band.causal());
    const int64_t k_rows = sizes.largest_group > 1 ? flash4_k_rows(width, call.keys()) : 0;
    if (std::max(q_rows, k_rows) * width.width > kFlash4MostSum)
      return cat(
          "got ", call.rows(), " query rows over ", call.keys(), " key rows, expected fewer than ",
          kFlash4MostSum / width.width + 1, " of width ", width.width,
          " in whole tiles, of whose sums it counts the elements in 32 bits; use more ranks (--ring) or "
          "--attention auto");
    return {};
  }

  HeadsOfCall backward_heads_of(const MaskCall& call, const AttentionSizes& sizes) const override {
    return heads_of_dense_backward(call, sizes, backward_call_bytes_);
  }

  AttentionOutput forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const KernelMask& mask) override {
    AttentionOutput out{at::empty(q.sizes(), q.options()),
                        at::empty({q.size(0), q.size(2), q.size(1)}, q.options().dtype(at::kFloat))};
    runner_->forward({q, k, v, out.o, out.lse}, mask.scores.scale, mask.band.causal());
    return out;
  }

  AttentionGradients backward(const at::Tensor& d_o, const at::Tensor& q, const at::Tensor& k,
                              const at::Tensor& v, const AttentionOutput& saved,
                              const KernelMask& mask) override {
    const Flash4Width& width = *flash4_width(q.size(3));
    const bool causal = mask.band.causal(), grouped = q.size(2) != k.size(2);
    const auto fp32 = q.options().dtype(at::kFloat);
    // Not read where heads are not grouped, but its strides are checked.
    const int64_t k_rows = grouped ? flash4_k_rows(width, k.size(1)) : 1;
    const int64_t q_rows = flash4_q_rows(width, q.size(1), causal), k_sum = k_rows * width.width;
    const std::array<int64_t, 3> of_rows{q.size(0), q.size(2), q_rows}, of_keys{k.size(0), k.size(2), k_sum};
    AttentionGradients out{at::empty(q.sizes(), q.options()), at::empty(k.sizes(), k.options()),
                           at::empty(v.sizes(), v.options())};
    runner_->backward({.d_o = with_contiguous_rows(d_o),
                       .q = q,
                       .k = k,
                       .v = v,
                       .o = with_contiguous_rows(saved.o),
                       .lse = saved.lse,
                       .dq = out.dq,
                       .dk = out.dk,
                       .dv = out.dv,
                       .dq_sum = at::empty({q.size(0), q.size(2), q_rows * width.width}, fp32),
                       .dk_sum = at::zeros(of_keys, fp32),
                       .dv_sum = at::zeros(of_keys, fp32),
                       .delta = at::empty(of_rows, fp32),
                       .lse_log2 = at::empty(of_rows, fp32)},
                      mask.scores.scale, causal);
    return out;
  }

 private:
  std::unique_ptr<Flash4Runner> runner_;
  int64_t backward_call_bytes_, least_pair_values_;
};

}  // namespace

std::unique_ptr<CallKernel> make_flash4_kernel(std::unique_ptr<Flash4Runner> runner,
                                               int64_t backward_call_bytes, int64_t least_pair_values) {
  return std::make_unique<Flash4Kernel>(std::move(runner), backward_call_bytes, least_pair_values);
}

}  // namespace trireme
