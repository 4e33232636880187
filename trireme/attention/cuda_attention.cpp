// Both kernels take grouped heads when every key/value head has as many query heads; other head maps are cut
// into runs that are so ({0,0,1} into {0,0} and {1}), one call each. No key is repeated.
//
//   flash   [B, S, h, D] as it is        cuDNN   [B, h, S, D]: transposed views
#include "trireme/attention/cuda_attention.h"

#include <ATen/core/grad_mode.h>

#include "trireme/attention/attention_arguments.h"
#include "trireme/base/error.h"

namespace trireme {

namespace {

// Query heads [query, query_end) over key/value heads [kv, kv_end), the same number for each.
struct EvenRun {
  int64_t query, query_end;
  int64_t kv, kv_end;
};

std::vector<EvenRun> even_runs(const AttentionSpec& spec, int64_t kv_heads) {
  std::vector<EvenRun> runs;
  int64_t group = 0;
  for (const HeadRun& head : runs_of_heads(spec, kv_heads)) {
    const int64_t size = head.end - head.begin;
    if (size != 0 && size == group)
      runs.back() = {runs.back().query, head.end, runs.back().kv, head.kv_head + 1};
    else if (size != 0)
      runs.push_back({head.begin, head.end, head.kv_head, head.kv_head + 1});
    group = size;
  }
  return runs;
}

struct Pass {
  at::Tensor o, lse;  // [B, S, h, D], [B, h, S]
};

class CudaAttention : public LocalAttention {
 public:
  AttentionOutput forward(const at::Tensor& q_in, const at::Tensor& k_in, const at::Tensor& v_in,
                          const AttentionSpec& spec) override {
    const at::NoGradGuard no_grad;
    const AttentionSizes sizes = check_attention(q_in, k_in, v_in, spec);
    check_width(sizes.width);
    const at::Tensor q = with_contiguous_rows(q_in), k = with_contiguous_rows(k_in),
                     v = with_contiguous_rows(v_in);
    AttentionOutput out{
        at::empty(q.sizes(), q.options()),
        at::empty({sizes.batch, sizes.query_heads, sizes.tokens}, q.options().dtype(at::kFloat))};
    if (sizes.empty()) return out;
    const auto runs = even_runs(spec, sizes.kv_heads);
    for (const EvenRun& run : runs) {
      const Pass pass = run_forward(q.slice(2, run.query, run.query_end), k.slice(2, run.kv, run.kv_end),
                                    v.slice(2, run.kv, run.kv_end), spec);
      if (runs.size() == 1) return {pass.o.contiguous(), pass.lse.contiguous()};
      out.o.slice(2, run.query, run.query_end).copy_(pass.o);
      out.lse.slice(1, run.query, run.query_end).copy_(pass.lse);
    }
    return out;
  }

  AttentionGradients backward(const at::Tensor& do_in, const at::Tensor& q_in, const at::Tensor& k_in,
                              const at::Tensor& v_in, const AttentionOutput& saved,
                              const AttentionSpec& spec) override {
    const at::NoGradGuard no_grad;
    const AttentionSizes sizes = check_attention_backward(do_in, q_in, k_in, v_in, saved, spec);
    check_width(sizes.width);
    const at::Tensor q = with_contiguous_rows(q_in), k = with_contiguous_rows(k_in),
                     v = with_contiguous_rows(v_in);
    const at::Tensor d_o = do_in.contiguous(), o = saved.o.contiguous();
    AttentionGradients gradients{at::empty(q.sizes(), q.options()), at::zeros(k.sizes(), k.options()),
                                 at::zeros(v.sizes(), v.options())};
    if (sizes.empty()) return gradients;
    for (const EvenRun& run : even_runs(spec, sizes.kv_heads)) {
      const auto queries = [&](const at::Tensor& x) { return x.slice(2, run.query, run.query_end); };
      const auto keys = [&](const at::Tensor& x) { return x.slice(2, run.kv, run.kv_end); };
      const AttentionGradients part =
          run_backward(queries(d_o), queries(q), keys(k), keys(v),
                       {queries(o), saved.lse.slice(1, run.query, run.query_end).contiguous()}, spec);
      queries(gradients.dq).copy_(part.dq);
      keys(gradients.dk).copy_(part.dk);
      keys(gradients.dv).copy_(part.dv);
    }
    return gradients;
  }

 protected:
  // Even groups of heads, [B, S, heads, D] in and out.
  virtual Pass run_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const AttentionSpec& spec) = 0;
  virtual AttentionGradients run_backward(const at::Tensor& d_o, const at::Tensor& q, const at::Tensor& k,
                                          const at::Tensor& v, const Pass& saved,
                                          const AttentionSpec& spec) = 0;

 private:
  void check_width(int64_t width) const {
    if (width % 8 != 0 || width > 256)
      throw ConfigError(cat("attention kernel '", name(), "': got head width ", width,
                            ", expected a multiple of 8 up to 256; use 'reference'"));
  }
};

class CudaFlashAttention final : public CudaAttention {
 public:
  std::string name() const override { return "flash (CUDA, FlashAttention-2)"; }

 protected:
  Pass run_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                   const AttentionSpec& spec) override {
    const auto [left, right] = window_of(spec);
    const auto result = at::_flash_attention_forward(q, k, v, std::nullopt, std::nullopt, q.size(1),
                                                     k.size(1), 0.0, true, false, spec.scale, left, right);
    return {std::get<0>(result), std::get<1>(result)};
  }

  AttentionGradients run_backward(const at::Tensor& d_o, const at::Tensor& q, const at::Tensor& k,
                                  const at::Tensor& v, const Pass& saved,
                                  const AttentionSpec& spec) override {
    const auto [left, right] = window_of(spec);
    const at::Tensor seed = at::zeros({2}, q.options().dtype(at::kUInt64)),
                     unused = at::empty({0}, q.options());
    const auto [dq, dk, dv] =
        at::_flash_attention_backward(d_o, q, k, v, saved.o, saved.lse, at::Tensor(), at::Tensor(), q.size(1),
                                      k.size(1), 0.0, true, seed, unused, spec.scale, left, right);
    return {dq, dk, dv};
  }

 private:
  // FlashAttention counts the keys before a query's own; -1 means no bound.
  static std::pair<int64_t, int64_t> window_of(const AttentionSpec& spec) {
    return spec.window == 0 ? std::pair<int64_t, int64_t>{-1, -1} : std::pair{spec.window - 1, int64_t{0}};
  }
};

class CudnnAttention final : public CudaAttention {
 public:
  std::string name() const override { return "cudnn"; }

 protected:
  Pass run_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                   const AttentionSpec& spec) override {
    refuse_window(spec);
    const auto result = at::_cudnn_attention_forward(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), std::nullopt, std::nullopt, std::nullopt,
        q.size(1), k.size(1), /*compute_log_sumexp=*/true, 0.0, /*is_causal=*/true, false, spec.scale);
    const at::Tensor& lse = std::get<1>(result);
    return {std::get<0>(result).transpose(1, 2), lse.dim() == 4 ? lse.squeeze(3) : lse};
  }

  AttentionGradients run_backward(const at::Tensor& d_o, const at::Tensor& q, const at::Tensor& k,
                                  const at::Tensor& v, const Pass& saved,
                                  const AttentionSpec& spec) override {
    refuse_window(spec);
    const at::Tensor seed = at::zeros({}, q.options().dtype(at::kLong)), none;
    const auto [dq, dk, dv] = at::_cudnn_attention_backward(
        d_o.transpose(1, 2), q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), saved.o.transpose(1, 2),
        saved.lse, seed, seed, none, none, none, q.size(1), k.size(1), 0.0, true, spec.scale);
    return {dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)};
  }

 private:
  static void refuse_window(const AttentionSpec& spec) {
    if (spec.window != 0)
      throw ConfigError(cat("attention kernel 'cudnn': got a window of ", spec.window,
                            " tokens, which it does not know; use 'flash' or 'auto'"));
  }
};

// cuDNN, and flash for the layers that have a window.
class AutomaticCudaAttention final : public LocalAttention {
 public:
  std::string name() const override { return "cudnn; flash (CUDA, FlashAttention-2) for windows"; }
  AttentionOutput forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const AttentionSpec& spec) override {
    return kernel_for(spec).forward(q, k, v, spec);
  }
  AttentionGradients backward(const at::Tensor& d_o, const at::Tensor& q, const at::Tensor& k,
                              const at::Tensor& v, const AttentionOutput& saved,
                              const AttentionSpec& spec) override {
    return kernel_for(spec).backward(d_o, q, k, v, saved, spec);
  }

 private:
  LocalAttention& kernel_for(const AttentionSpec& spec) {
    if (spec.window == 0) return cudnn_;
    return flash_;
  }
  CudnnAttention cudnn_;
  CudaFlashAttention flash_;
};

}  // namespace

std::unique_ptr<LocalAttention> make_cuda_attention(AttentionKernel kernel, at::ScalarType dtype) {
  if (dtype != at::kHalf && dtype != at::kBFloat16)
    throw ConfigError(cat("attention kernels 'cudnn' and 'flash' on CUDA: got ", dtype,
                          ", expected bf16 or fp16; use 'reference' or 'auto'"));
  if (kernel == AttentionKernel::flash) return std::make_unique<CudaFlashAttention>();
  if (kernel == AttentionKernel::cudnn) return std::make_unique<CudnnAttention>();
  return std::make_unique<AutomaticCudaAttention>();
}

}  // namespace trireme
