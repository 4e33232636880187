// Attention by calls of kernels that know bands (mask_runs.h): what FlashAttention-2, FlashAttention-4 and
// cuDNN on CUDA share.
// A mask is cut into calls, heads into even groups, and each call takes views of its rows, keys and heads:
//
//   dense       q_bshD, k_btkD, v_btkD               -> o_bshD, lse_bhs
//   segments    q_nhD,  k_mkD,  v_mkD, cu_q, cu_k    -> o_nhD,  lse_hn     n = b s rows, m = b t keys
//
// s of the S query rows, t of the T key rows and b of the B samples are in the call. Rows in no call keep
// o = 0 and lse = minus infinity; what a later call gives of a row replaces what one before gave, which had
// no keys for it. Where calls share keys, dk and dv are summed, of more than two in fp32. Plain libtorch: its
// arithmetic is tested where there is no GPU, with a kernel that is emulated.
//
// Backward with the o and lse of more keys than these needs nothing more: all kernels compute p = exp(score -
// lse) from the lse that they are given and delta = rowsum(do o) from o (FlashAttention-2:
// compute_dot_do_o, then exp2 of scores less lse, in flash_bwd_kernel.h; FlashAttention-4:
// flash_bwd_preprocess.py and flash_bwd_sm90.py; cuDNN's backward graph has o and the
// statistics as inputs), and ds = p (do v' - delta) of one key asks for no other key. With the o and lse of
// all keys they thus give these keys' part.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "trireme/kernels/attention_arguments.h"
#include "trireme/kernels/local_attention.h"
#include "trireme/kernels/mask_runs.h"

namespace trireme {

class SegmentTable;  // segment_table.h

// What a kernel is told beside its tensors.
struct KernelMask {
  ScoreForm scores;
  Band band;
  at::Tensor cu_q;  // int32 on the device, one more than segments; undefined: dense
  at::Tensor cu_k;
  int64_t longest_q = 0;
  int64_t longest_k = 0;
  std::shared_ptr<SegmentTable> table;  // of kernels that ask for it
  bool dense() const { return !cu_q.defined(); }
};

// The heads that a kernel takes in one call.
struct HeadsOfCall {
  int64_t most_query_heads = 1;
  bool many_groups = true;  // false: several query heads of one key/value head, or one of each of several
};

// Of a dense call's backward that holds at most `most_bytes` beside its results (backward_heads.h).
HeadsOfCall heads_of_dense_backward(const MaskCall& call, const AttentionSizes& sizes, int64_t most_bytes);

// Every key/value head has as many query heads as any other. Results are of the inputs' dtype, lse fp32.
class CallKernel {
 public:
  virtual ~CallKernel() = default;
  CallKernel& operator=(CallKernel&&) = delete;
  virtual std::string name() const = 0;
  // The segments that the kernel takes in one call; 1: it knows dense calls alone.
  virtual int64_t most_segments(const AttentionSizes& /*sizes*/) const { return kMostSegments; }
  // Tokens from which the causal documents of a packed mask are calls of this kernel, if one that takes
  // segments has the others (long_documents.h).
  virtual int64_t least_tokens_alone(const RankHeads& /*heads*/) const { return kNeverAlone; }
  virtual DenseLengths dense_lengths() const { return DenseLengths::of_graphs_and_samples; }
  // It stands behind the kernels of narrower heads and is not asked for those.
  virtual int64_t least_width() const { return 1; }
  virtual bool caps_scores() const { return false; }
  // Empty: the kernel takes the call. Else what it got, what it expects, and what to use.
  virtual std::string refusal(const MaskCall& call, const AttentionSizes& sizes) const = 0;
  // Of a call that is not refused.
  virtual HeadsOfCall heads_of(const MaskCall& /*call*/, const AttentionSizes& sizes) const {
    return {sizes.query_heads};
  }
  // The same of backward.
  virtual HeadsOfCall backward_heads_of(const MaskCall& call, const AttentionSizes& sizes) const {
    return heads_of(call, sizes);
  }
  // Once for each call of a mask.
  virtual KernelMask mask_of(const MaskCall& call, at::Device device) const;
  // A row without keys has o = 0 and an infinite lse of either sign.
  virtual AttentionOutput forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const KernelMask& mask) = 0;
  // lse is contiguous. Every row of dq, dk and dv is written, those of segments without keys or rows with
  // zero.
  virtual AttentionGradients backward(const at::Tensor& d_o, const at::Tensor& q, const at::Tensor& k,
                                      const at::Tensor& v, const AttentionOutput& saved,
                                      const KernelMask& mask) = 0;
};

// Each call goes to the first kernel that takes it, and as often as its heads need. All layers of a step
// share a mask (VisibleKeys): it is cut, and its cu_seqlens are copied to the device, once. Throws
// ConfigError: a call that none takes, block-sparse masks.
class CallsAttention final : public LocalAttention {
 public:
  explicit CallsAttention(std::vector<std::unique_ptr<CallKernel>> kernels);
  std::string name() const override;
  std::string for_documents(const RankHeads& heads) const override;
  AttentionOutput forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const AttentionSpec& spec) override;
  AttentionGradients backward(const at::Tensor& d_o, const at::Tensor& q, const at::Tensor& k,
                              const at::Tensor& v, const AttentionOutput& saved,
                              const AttentionSpec& spec) override;

 private:
  struct PlannedCall {
    MaskCall call;
    KernelMask mask;  // scores are the caller's
    CallKernel* kernel = nullptr;
    HeadsOfCall forward, backward;
  };
  // The calls of a mask, for as long as it lives.
  struct Plan {
    std::weak_ptr<const VisibleKeys> keys;
    AttentionSizes sizes;
    at::Device device;
    bool capped = false;
    std::vector<PlannedCall> calls;
    int64_t calls_of_a_key = 0;  // at most
  };
  // Valid until the next call of it.
  const Plan& plan_of(const AttentionSpec& spec, const AttentionSizes& sizes, at::Device device);
  Plan make_plan(const AttentionSpec& spec, const AttentionSizes& sizes, at::Device device) const;
  using Kernels = std::vector<std::unique_ptr<CallKernel>>;
  // Those that are asked for heads of `width`: the first ones.
  std::span<const Kernels::value_type> of_width(int64_t width) const;
  // The first of these that has calls for them beside the last, which takes segments; none: null.
  const CallKernel* of_long_documents(const RankHeads& heads) const;
  CallKernel& kernel_for(const MaskCall& call, const AttentionSizes& sizes, bool capped) const;

  Kernels kernels_;
  std::vector<Plan> plans_;
};

// Of these kernels, the first of which is asked first.
template <typename... CallKernels>
std::unique_ptr<CallsAttention> attention_by_calls(CallKernels... kernels) {
  std::vector<std::unique_ptr<CallKernel>> list;
  (list.push_back(std::move(kernels)), ...);
  return std::make_unique<CallsAttention>(std::move(list));
}

}  // namespace trireme
