// cuDNN's fused attention through libtorch, on [b, heads, rows, D]: transposed views. Its log-sum-exp has
// four dimensions, [b, heads, rows, 1], both ways: backward refuses three. Its causal mask is aligned at the
// first key, FlashAttention's at the last; they agree where there are as many keys as rows.
#include <optional>

#include "trireme/base/environment.h"
#include "trireme/base/error.h"
#include "trireme/kernels/cuda_kernels.h"
#include "trireme/kernels/key_blocks.h"

namespace trireme {

namespace {

// With this variable libtorch gives and expects a log-sum-exp of [b, rows, heads] (use_ragged_in_dense in
// MHA.cpp). It reads the variable once, at the process's first call.
constexpr const char* kOtherLayout = "TORCH_CUDNN_SDPA_AVOID_RECOMPILE";

class CudnnKernel final : public CallKernel {
 public:
  explicit CudnnKernel(const CudnnCalls& calls) : calls_(calls) {}

  std::string name() const override { return "cudnn"; }

  DenseLengths dense_lengths() const override {
    return calls_.lengths == SampleLengths::any ? DenseLengths::of_graphs
                                                : DenseLengths::of_graphs_and_samples;
  }

  int64_t least_tokens_alone(const RankHeads& heads) const override {
    return trireme::least_tokens_alone(heads.query, heads.width, calls_.least_pair_values);
  }

  std::string refusal(const MaskCall& call, const AttentionSizes& sizes) const override {
    constexpr const char* kInstead = "; use --attention flash or --attention auto";
    if (!dense_takes_width(sizes.width))
      return cat("got head width ", sizes.width, ", expected a multiple of 8 from ", kLeastDenseWidth, " to ",
                 kMostDenseWidth, kInstead);
    if (!call.dense()) return cat("got packed documents, which it does not know", kInstead);
    if (!call.band.full() && !call.band.causal())
      return cat("got a window, which it does not know", kInstead);
    if (call.band.causal() && call.rows() != call.keys())
      return cat("got causal attention of ", call.rows(), " query rows over ", call.keys(),
                 " key rows, expected as many", kInstead);
    if (call.rows() < kLeastDenseRows || call.keys() < kLeastDenseRows)
      return cat("got ", call.rows(), " query rows over ", call.keys(), " key rows, expected ",
                 kLeastDenseRows, " or more of both", kInstead);
    if (call.band.full() && call.keys() % 128 == 64)
      return cat("got full attention over ", call.keys(),
                 " key rows, 64 more than a multiple of 128, where cuDNN's backward on Hopper may give NaN "
                 "(cudnn-frontend pull request 628)",
                 kInstead);
    // A graph is built for every new shape, which takes longer than most calls: only shapes that come again.
    const bool is_of_graph =
        call.rows() == tokens_of_graph(call.rows()) && call.keys() == tokens_of_graph(call.keys());
    if (calls_.lengths == SampleLengths::any && !is_of_graph)
      return cat("got ", call.rows(), " query rows over ", call.keys(),
                 " key rows of samples of any length, expected one of 16 lengths an octave", kInstead);
    const bool long_document =
        call.band.causal() && is_of_graph &&
        call.rows() >= least_tokens_alone({sizes.query_heads, sizes.largest_group, sizes.width});
    if (call.rows() != sizes.queries && call.keys() != sizes.keys && !long_document)
      return cat("got a mask of which ", call.rows(), " of ", sizes.queries, " query rows see ", call.keys(),
                 " of ", sizes.keys, " key rows, expected all of either", kInstead);
    return {};
  }

  HeadsOfCall backward_heads_of(const MaskCall& call, const AttentionSizes& sizes) const override {
    return heads_of_dense_backward(call, sizes, calls_.backward_call_bytes);
  }

  AttentionOutput forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const KernelMask& mask) override {
    return forward_in_key_blocks(
        q, k, v, mask.band.causal(), most_keys_of_block(q.size(3), calls_.key_block_bytes),
        [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal) -> AttentionOutput {
          const auto result = at::_cudnn_attention_forward(
              q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), /*attn_bias=*/std::nullopt,
              std::nullopt, std::nullopt, q.size(1), k.size(1), /*compute_log_sumexp=*/true,
              /*dropout_p=*/0.0, causal, /*return_debug_mask=*/false, mask.scores.scale);
          return {std::get<0>(result).transpose(1, 2), std::get<1>(result).squeeze(3)};
        });
  }

  AttentionGradients backward(const at::Tensor& d_o, const at::Tensor& q, const at::Tensor& k,
                              const at::Tensor& v, const AttentionOutput& saved,
                              const KernelMask& mask) override {
    const at::Tensor seed = at::zeros({}, q.options().dtype(at::kLong)), none;
    const auto [dq, dk, dv] = at::_cudnn_attention_backward(
        d_o.contiguous().transpose(1, 2), q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
        saved.o.contiguous().transpose(1, 2), saved.lse.unsqueeze(3), seed, seed, none, none, none, q.size(1),
        k.size(1),
        /*dropout_p=*/0.0, mask.band.causal(), mask.scores.scale);
    return {dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)};
  }

 private:
  CudnnCalls calls_;
};

}  // namespace

std::unique_ptr<CallKernel> make_cudnn_kernel(const CudnnCalls& calls) {
  const std::optional<std::string> other_layout = environment(kOtherLayout);
  if (other_layout && *other_layout != "0")
    throw ConfigError(
        cat("attention kernel 'cudnn': got ", kOtherLayout, "=", *other_layout,
            " in the environment, with which libtorch lays out the log-sum-exp otherwise; unset it, "
            "or use --attention flash"));
  return std::make_unique<CudnnKernel>(calls);
}

}  // namespace trireme
