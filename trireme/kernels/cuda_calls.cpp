// Kernels take grouped heads when every key/value head has as many query heads; other head maps are cut into
// runs that are so ({0,0,1} into {0,0} and {1}), one call each, and longer runs into as many heads as a
// kernel takes. No key is repeated.
#include "trireme/kernels/cuda_calls.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "trireme/base/error.h"
#include "trireme/base/round_up.h"
#include "trireme/kernels/backward_heads.h"

namespace trireme {

namespace {

// Query heads [query, query_end) over key/value heads [kv, kv_end), the same number for each.
struct EvenRun {
  int64_t query, query_end;
  int64_t kv, kv_end;
};

// Whole groups, as many in each call, where a group fits; else parts of one: calls that share their keys.
void cut(const EvenRun& run, const HeadsOfCall& heads, std::vector<EvenRun>& pieces) {
  const int64_t all = run.kv_end - run.kv, group = (run.query_end - run.query) / all;
  const bool one = heads.most_query_heads < group || (group > 1 && !heads.many_groups);
  const int64_t most = one ? 1 : heads.most_query_heads / group;
  const int64_t calls = round_up(all, most) / most, groups = round_up(all, calls) / calls;
  for (int64_t kv = run.kv; kv < run.kv_end; kv += groups) {
    const int64_t kv_end = std::min(run.kv_end, kv + groups);
    const int64_t end = run.query + (kv_end - run.kv) * group;
    const int64_t step = std::min((kv_end - kv) * group, heads.most_query_heads);
    for (int64_t query = run.query + (kv - run.kv) * group; query < end; query += step)
      pieces.push_back({query, std::min(end, query + step), kv, kv_end});
  }
}

std::vector<EvenRun> even_runs(const AttentionSpec& spec, int64_t kv_heads, const HeadsOfCall& heads) {
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
  std::vector<EvenRun> pieces;
  for (const EvenRun& run : runs) cut(run, heads, pieces);
  return pieces;
}

// One call and one even run of heads: the views of them.
class CallViews {
 public:
  CallViews(const MaskCall& call, const EvenRun& heads) : call_(call), heads_(heads) {}
  at::Tensor queries(const at::Tensor& x_BShD) const {
    return samples(x_BShD).slice(1, call_.q, call_.q_end).slice(2, heads_.query, heads_.query_end);
  }
  at::Tensor keys(const at::Tensor& x_BTkD) const {
    return samples(x_BTkD).slice(1, call_.k, call_.k_end).slice(2, heads_.kv, heads_.kv_end);
  }
  at::Tensor lse(const at::Tensor& lse_BhS) const {
    return samples(lse_BhS).slice(1, heads_.query, heads_.query_end).slice(2, call_.q, call_.q_end);
  }
  bool all_queries(const AttentionSizes& sizes) const {
    return all_samples(sizes) && call_.rows() == sizes.queries &&
           heads_.query_end - heads_.query == sizes.query_heads;
  }
  bool all(const AttentionSizes& sizes) const {
    return all_queries(sizes) && call_.keys() == sizes.keys && heads_.kv_end - heads_.kv == sizes.kv_heads;
  }

 private:
  at::Tensor samples(const at::Tensor& x) const { return x.slice(0, call_.sample, call_.sample_end); }
  bool all_samples(const AttentionSizes& sizes) const {
    return call_.sample_end - call_.sample == sizes.batch;
  }
  const MaskCall& call_;
  const EvenRun& heads_;
};

// [b, s, heads, D] -> [b s, heads, D]: a view where the call has whole samples, or one.
at::Tensor as_rows(const at::Tensor& x) {
  return x.flatten(0, 1);
}

AttentionOutput forward_call(CallKernel& kernel, const at::Tensor& q, const at::Tensor& k,
                             const at::Tensor& v, const KernelMask& mask) {
  if (mask.dense()) return kernel.forward(q, k, v, mask);
  const AttentionOutput rows = kernel.forward(as_rows(q), as_rows(k), as_rows(v), mask);
  const double infinity = std::numeric_limits<double>::infinity();
  const at::Tensor lse = rows.lse.masked_fill(rows.lse.eq(infinity), -infinity);
  return {rows.o.view(q.sizes()), lse.view({q.size(2), q.size(0), q.size(1)}).transpose(0, 1)};
}

AttentionGradients backward_call(CallKernel& kernel, const at::Tensor& d_o, const at::Tensor& q,
                                 const at::Tensor& k, const at::Tensor& v, const AttentionOutput& saved,
                                 const KernelMask& mask) {
  if (mask.dense()) return kernel.backward(d_o, q, k, v, {saved.o, saved.lse.contiguous()}, mask);
  const AttentionOutput rows{as_rows(saved.o), saved.lse.transpose(0, 1).flatten(1, 2).contiguous()};
  const AttentionGradients g = kernel.backward(as_rows(d_o), as_rows(q), as_rows(k), as_rows(v), rows, mask);
  return {g.dq.view(q.sizes()), g.dk.view(k.sizes()), g.dv.view(v.sizes())};
}

// The most calls that any key row of any sample is in.
int64_t most_calls_of_a_key(const std::vector<MaskCall>& calls, int64_t batch) {
  int64_t most = 0;
  for (int64_t sample = 0; sample < batch; ++sample) {
    std::vector<std::pair<int64_t, int64_t>> borders;  // keys where calls end, before those where they begin
    for (const MaskCall& call : calls)
      if (call.sample <= sample && sample < call.sample_end) {
        borders.emplace_back(call.k, 1);
        borders.emplace_back(call.k_end, -1);
      }
    std::sort(borders.begin(), borders.end());
    int64_t open = 0;
    for (const auto& [key, change] : borders) most = std::max(most, open += change);
  }
  return most;
}

at::Tensor in(at::ScalarType dtype, const at::Tensor& result) {
  return result.to(dtype).contiguous();
}

}  // namespace

HeadsOfCall heads_of_dense_backward(const MaskCall& call, const AttentionSizes& sizes, int64_t most_bytes) {
  const int64_t samples = call.sample_end - call.sample;
  return {backward_heads(samples * round_up(call.rows(), kDqRowBlock), samples * call.keys(),
                         sizes.query_heads, sizes.kv_heads, sizes.width, most_bytes)};
}

KernelMask CallKernel::mask_of(const MaskCall& call, at::Device device) const {
  KernelMask mask{{}, call.band, {}, {}, call.longest_q, call.longest_k, nullptr};
  if (call.dense()) return mask;
  mask.cu_q = at::tensor(call.cu_q, at::kInt).to(device);
  mask.cu_k = at::tensor(call.cu_k, at::kInt).to(device);
  return mask;
}

CallsAttention::CallsAttention(std::vector<std::unique_ptr<CallKernel>> kernels)
    : kernels_(std::move(kernels)) {
  TRIREME_ASSERT(!kernels_.empty() && kernels_.front()->least_width() == 1,
                 "attention without a kernel for heads of any width");
}

std::string CallsAttention::name() const {
  std::string name = kernels_.front()->name();
  for (size_t i = 1; i < kernels_.size(); ++i) {
    const int64_t width = kernels_[i]->least_width();
    name += "; " + kernels_[i]->name() +
            (width == 1 ? " for other masks" : cat(" for heads ", width, " wide or wider"));
  }
  return name;
}

std::span<const CallsAttention::Kernels::value_type> CallsAttention::of_width(int64_t width) const {
  const auto wider =
      std::ranges::find_if(kernels_, [&](const auto& kernel) { return kernel->least_width() > width; });
  return {kernels_.begin(), wider};
}

const CallKernel* CallsAttention::of_long_documents(const RankHeads& heads) const {
  const auto kernels = of_width(heads.width);
  for (const auto& kernel : kernels.first(kernels.size() - 1))
    if (kernel->least_tokens_alone(heads) != kNeverAlone) return kernel.get();
  return nullptr;
}

std::string CallsAttention::for_documents(const RankHeads& heads) const {
  const CallKernel* long_ones = of_long_documents(heads);
  if (long_ones == nullptr) return {};
  return cat("packed documents of ", long_ones->least_tokens_alone(heads), " tokens or more by ",
             long_ones->name(), ", shorter ones by ", of_width(heads.width).back()->name());
}

const CallsAttention::Plan& CallsAttention::plan_of(const AttentionSpec& spec, const AttentionSizes& sizes,
                                                    at::Device device) {
  std::erase_if(plans_, [](const Plan& plan) { return plan.keys.expired(); });
  const auto known = std::find_if(plans_.begin(), plans_.end(), [&](const Plan& plan) {
    return plan.keys.lock() == spec.keys && plan.sizes == sizes && plan.device == device &&
           plan.capped == (spec.scores.cap > 0);
  });
  if (known != plans_.end()) return *known;
  plans_.push_back(make_plan(spec, sizes, device));
  return plans_.back();
}

CallsAttention::Plan CallsAttention::make_plan(const AttentionSpec& spec, const AttentionSizes& sizes,
                                               at::Device device) const {
  if (!spec.keys->sparse.dense())
    throw ConfigError(cat("attention kernel '", name(),
                          "': got block-sparse attention, which kernels on CUDA do ",
                          "not know; use --attention reference, or --attention flash on the CPU"));
  Plan plan{spec.keys, sizes, device, spec.scores.cap > 0, {}, 0};
  if (sizes.empty()) return plan;
  int64_t most_segments = kMostSegments;
  for (const auto& kernel : of_width(sizes.width))
    most_segments = std::min(most_segments, kernel->most_segments(sizes));
  const RankHeads heads{sizes.query_heads, sizes.largest_group, sizes.width};
  const CallKernel* long_ones = of_long_documents(heads);
  std::vector<MaskCall> calls =
      long_ones ? mask_calls(*spec.keys, sizes.batch, most_segments, long_ones->least_tokens_alone(heads),
                             long_ones->dense_lengths())
                : mask_calls(*spec.keys, sizes.batch, most_segments);
  plan.calls_of_a_key = most_calls_of_a_key(calls, sizes.batch);
  for (MaskCall& call : calls) {
    CallKernel& kernel = kernel_for(call, sizes, plan.capped);
    const HeadsOfCall forward = kernel.heads_of(call, sizes),
                      backward = kernel.backward_heads_of(call, sizes);
    KernelMask mask = kernel.mask_of(call, device);
    plan.calls.push_back({std::move(call), std::move(mask), &kernel, forward, backward});
  }
  return plan;
}

CallKernel& CallsAttention::kernel_for(const MaskCall& call, const AttentionSizes& sizes, bool capped) const {
  std::string refusal;
  for (const auto& kernel : of_width(sizes.width)) {
    refusal = capped && !kernel->caps_scores() ? "it caps no scores; use --attention auto"
                                               : kernel->refusal(call, sizes);
    if (refusal.empty()) return *kernel;
  }
  throw ConfigError(cat("attention kernel '", of_width(sizes.width).back()->name(), "': ", refusal));
}

AttentionOutput CallsAttention::forward(const at::Tensor& q_in, const at::Tensor& k_in,
                                        const at::Tensor& v_in, const AttentionSpec& spec) {
  const at::NoGradGuard no_grad;
  const AttentionSizes sizes = check_attention(q_in, k_in, v_in, spec);
  const Plan& plan = plan_of(spec, sizes, q_in.device());
  if (plan.calls.empty()) return output_without_keys(q_in, spec);
  const at::Tensor q = with_contiguous_rows(q_in), k = with_contiguous_rows(k_in),
                   v = with_contiguous_rows(v_in);
  AttentionOutput out;
  for (const PlannedCall& planned : plan.calls) {
    const MaskCall& call = planned.call;
    KernelMask mask = planned.mask;
    mask.scores = spec.scores;
    for (const EvenRun& heads : even_runs(spec, sizes.kv_heads, planned.forward)) {
      const CallViews views(call, heads);
      const AttentionOutput of_call =
          forward_call(*planned.kernel, views.queries(q), views.keys(k), views.keys(v), mask);
      if (!out.o.defined() && views.all_queries(sizes)) {
        out = {in(result_dtype(q, spec), of_call.o), of_call.lse.contiguous()};
        continue;
      }
      if (!out.o.defined()) out = output_without_keys(q, spec);
      views.queries(out.o).copy_(of_call.o);
      views.lse(out.lse).copy_(of_call.lse);
    }
  }
  return out;
}

AttentionGradients CallsAttention::backward(const at::Tensor& d_o, const at::Tensor& q_in,
                                            const at::Tensor& k_in, const at::Tensor& v_in,
                                            const AttentionOutput& saved, const AttentionSpec& spec) {
  const at::NoGradGuard no_grad;
  const AttentionSizes sizes = check_attention_backward(d_o, q_in, k_in, v_in, saved, spec);
  const Plan& plan = plan_of(spec, sizes, q_in.device());
  if (plan.calls.empty()) return no_gradients(q_in, k_in, spec);
  const at::Tensor q = with_contiguous_rows(q_in), k = with_contiguous_rows(k_in),
                   v = with_contiguous_rows(v_in);
  const at::ScalarType dtype = result_dtype(q, spec);
  const bool cut = std::any_of(plan.calls.begin(), plan.calls.end(), [&](const PlannedCall& planned) {
    return planned.backward.most_query_heads < sizes.largest_group;
  });
  const bool sum = cut || plan.calls_of_a_key > 1;
  // The sum of two values of 16 bits is computed in fp32 and rounded once, whatever the sum's dtype.
  const bool wide = cut || plan.calls_of_a_key > 2;
  const at::ScalarType sums = wide && at::isReducedFloatingType(dtype) ? at::kFloat : dtype;
  AttentionGradients out;
  for (const PlannedCall& planned : plan.calls) {
    const MaskCall& call = planned.call;
    KernelMask mask = planned.mask;
    mask.scores = spec.scores;
    for (const EvenRun& heads : even_runs(spec, sizes.kv_heads, planned.backward)) {
      const CallViews views(call, heads);
      const AttentionGradients of_call =
          backward_call(*planned.kernel, views.queries(d_o), views.queries(q), views.keys(k), views.keys(v),
                        {views.queries(saved.o), views.lse(saved.lse)}, mask);
      if (!out.dq.defined() && views.all(sizes)) {
        out = {in(dtype, of_call.dq), in(sums, of_call.dk), in(sums, of_call.dv)};
        continue;
      }
      if (!out.dq.defined())
        out = {at::zeros(q.sizes(), q.options().dtype(dtype)), at::zeros(k.sizes(), k.options().dtype(sums)),
               at::zeros(v.sizes(), v.options().dtype(sums))};
      views.queries(out.dq).copy_(of_call.dq);
      if (sum) {
        views.keys(out.dk).add_(of_call.dk);
        views.keys(out.dv).add_(of_call.dv);
      } else {
        views.keys(out.dk).copy_(of_call.dk);
        views.keys(out.dv).copy_(of_call.dv);
      }
    }
  }
  return {out.dq, in(dtype, out.dk), in(dtype, out.dv)};
}

}  // namespace trireme
