// Each thread keeps the maximum of its logits and the sum of exp(logit - maximum), the sum mended whenever
// the maximum grows (arXiv 1805.02867); warps, then the block, merge theirs in one order. A row may start
// anywhere: what lies before and after its whole 16 bytes is taken one by one.
#include "trireme/kernels/cross_entropy_kernel.h"
#include "trireme/kernels/gpu_code.h"

namespace trireme {
namespace {

constexpr float kNoLogit = -INFINITY;

struct SumOfExps {
  float most = kNoLogit, sum = 0;
};

// What a sum of exp(x - from) is multiplied by to be one of exp(x - to).
template <typename X>
__device__ inline float moved(float from, float to) {
  return from == to ? 1.0F : exponential<X>(from - to);
}
template <typename X>
__device__ inline SumOfExps merged(const SumOfExps& a, const SumOfExps& b) {
  const float most = fmaxf(a.most, b.most);
  return {most, a.sum * moved<X>(a.most, most) + b.sum * moved<X>(b.most, most)};
}
template <typename X>
__device__ inline SumOfExps merged_in_warp(SumOfExps thread_sum) {
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2)
    thread_sum = merged<X>(thread_sum, {__shfl_down_sync(kWholeWarp, thread_sum.most, lanes),
                                        __shfl_down_sync(kWholeWarp, thread_sum.sum, lanes)});
  return thread_sum;
}

template <int n, typename X>
__device__ inline void add_logits(SumOfExps& thread_sum, const Values<X, n>& logits) {
  float most = widened(logits.at[0]);
#pragma unroll
  for (int i = 1; i < n; ++i) most = fmaxf(most, widened(logits.at[i]));
  if (most > thread_sum.most) {
    thread_sum.sum *= exponential<X>(thread_sum.most - most);
    thread_sum.most = most;
  }
  const float shift = thread_sum.most == kNoLogit ? 0.0F : thread_sum.most;  // -inf - -inf is not a number
#pragma unroll
  for (int i = 0; i < n; ++i) thread_sum.sum += exponential<X>(widened(logits.at[i]) - shift);
}

// A row: `head` elements, `whole` times 16 bytes, the rest.
template <typename X>
struct LogitRow {
  static constexpr int n = 16 / sizeof(X);
  X* data;
  int V, head, whole;

  __device__ LogitRow(X* row, int64_t width) : data(row), V(static_cast<int>(width)) {
    const int before = static_cast<int>((16 - reinterpret_cast<uintptr_t>(row) % 16) % 16 / sizeof(X));
    head = before < V ? before : V;
    whole = (V - head) / n;
  }
  __device__ X* at_16(int i) const { return data + head + i * n; }
  // Of the elements that lie outside of the whole ones, `head` first: at most 2 (n - 1).
  __device__ int outside() const { return V - whole * n; }
  __device__ int of_outside(int i) const { return i < head ? i : i + whole * n; }
};

// Four loads at once are under way; all of a block's threads together keep memory busy.
constexpr int kLoadsAtOnce = 4;

template <int kThreads, typename X>
__device__ SumOfExps sum_of_exps(const LogitRow<X>& row) {
  constexpr int n = LogitRow<X>::n;
  const int thread = static_cast<int>(threadIdx.x);
  SumOfExps thread_sum;
  int i = thread;
  for (; i + (kLoadsAtOnce - 1) * kThreads < row.whole; i += kLoadsAtOnce * kThreads) {
    Values<X, n> some[kLoadsAtOnce];
#pragma unroll
    for (int k = 0; k < kLoadsAtOnce; ++k) some[k] = load_global<n>(row.at_16(i + k * kThreads));
#pragma unroll
    for (int k = 0; k < kLoadsAtOnce; ++k) add_logits(thread_sum, some[k]);
  }
  for (; i < row.whole; i += kThreads) add_logits(thread_sum, load_global<n>(row.at_16(i)));
  if (thread < row.outside()) add_logits(thread_sum, load_global<1>(row.data + row.of_outside(thread)));

  __shared__ Shared<float, kWarp> most, sum;
  const int lane = thread % kWarp, warp = thread / kWarp;
  thread_sum = merged_in_warp<X>(thread_sum);
  if (lane == 0) {
    most[warp] = thread_sum.most;
    sum[warp] = thread_sum.sum;
  }
  __syncthreads();
  if (warp == 0) {
    SumOfExps of_warp;
    if (lane < kThreads / kWarp) of_warp = {most[lane], sum[lane]};
    of_warp = merged_in_warp<X>(of_warp);
    __syncwarp();
    if (lane == 0) {
      most[0] = of_warp.most;
      sum[0] = of_warp.sum;
    }
  }
  __syncthreads();
  return {most[0], sum[0]};
}

// Of logits c = cap tanh(x / cap): dc/dx, and the loads at once that registers have room for.
struct Uncapped {
  static constexpr int kLoads = kLoadsAtOnce;
  __device__ float slope(float) const { return 1.0F; }
};
struct Capped {
  static constexpr int kLoads = kLoadsAtOnce / 2;
  float cap, per_square;
  __device__ float slope(float c) const { return (cap - c) * (cap + c) * per_square; }
};

// exp(c - most) * factor * dc/dx.
template <int n, typename X, typename Cap>
__device__ inline Values<X, n> gradients(Values<X, n> logits, float most, float factor, const Cap& cap) {
#pragma unroll
  for (int i = 0; i < n; ++i) {
    const float logit = widened(logits.at[i]);
    logits.at[i] = narrowed<X>(exponential<X>(logit - most) * factor * cap.slope(logit));
  }
  return logits;
}

// Backwards: what was read last is still in the caches.
template <int kThreads, typename X, typename Cap>
__device__ void to_gradient(const LogitRow<X>& row, float most, float sum, float scale, const Cap& cap) {
  constexpr int n = LogitRow<X>::n;
  const int thread = static_cast<int>(threadIdx.x), last = row.whole - 1;
  const float factor = scale / sum;
  int i = thread;
  for (; i + (Cap::kLoads - 1) * kThreads < row.whole; i += Cap::kLoads * kThreads) {
    Values<X, n> some[Cap::kLoads];
#pragma unroll
    for (int k = 0; k < Cap::kLoads; ++k) some[k] = load_global<n>(row.at_16(last - i - k * kThreads));
#pragma unroll
    for (int k = 0; k < Cap::kLoads; ++k)
      store_global(row.at_16(last - i - k * kThreads), gradients(some[k], most, factor, cap));
  }
  for (; i < row.whole; i += kThreads)
    store_global(row.at_16(last - i), gradients(load_global<n>(row.at_16(last - i)), most, factor, cap));
  if (thread < row.outside()) {
    X* const element = row.data + row.of_outside(thread);
    store_global(element, gradients(load_global<1>(element), most, factor, cap));
  }
}

template <int kThreads, typename X>
__device__ void clear(const LogitRow<X>& row) {
  constexpr int n = LogitRow<X>::n;
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < row.whole; i += kThreads) store_global(row.at_16(i), Values<X, n>{});
  if (thread < row.outside()) store_global(row.data + row.of_outside(thread), X{});
}

template <int kThreads, typename X, typename Cap>
__global__ void __launch_bounds__(kThreads, 1)
    cross_entropy_row(X* logits, int64_t stride, const int64_t* targets, float* loss, bool gradient,
                      float scale, Cap cap, int64_t V) {
  const int64_t t = blockIdx.x, target = load_global(targets + t);
  const LogitRow<X> row(logits + t * stride, V);
  if (target < 0) {
    if (threadIdx.x == 0) store_global(loss + t, 0.0F);
    if (gradient) clear<kThreads>(row);
    return;
  }
  if (target >= V) {
    if (threadIdx.x == 0) store_global(loss + t, NAN);
    return;
  }
  const bool first = threadIdx.x == 0;
  const float at_target = first ? widened(load_global(row.data + target)) : 0;
  const SumOfExps all = sum_of_exps<kThreads>(row);
  if (first) store_global(loss + t, logf(all.sum) + (all.most - at_target));
  if (!gradient) return;
  to_gradient<kThreads>(row, all.most, all.sum, scale, cap);
  __syncthreads();
  if (first)
    store_global(row.data + target, narrowed<X>((exponential<X>(at_target - all.most) / all.sum - 1) * scale *
                                                cap.slope(at_target)));
}

template <typename X, typename Cap>
void launch_logit_rows(const CrossEntropySizes& sizes, const GpuRows& logits, const int64_t* targets,
                       float* loss, std::optional<float> scale, const Cap& cap, void* stream) {
  const auto with = [&](auto kernel, int threads) {
    launch(kernel, {sizes.rows, threads}, stream, static_cast<X*>(logits.data), logits.stride, targets, loss,
           scale.has_value(), scale.value_or(0), cap, sizes.width);
  };
  // Of short rows several blocks at once keep memory busy.
  if (sizes.width * bytes_of(sizes.number) < 32768)
    with(cross_entropy_row<128, X, Cap>, 128);
  else
    with(cross_entropy_row<1024, X, Cap>, 1024);
}

}  // namespace

void launch_cross_entropy(const CrossEntropySizes& sizes, const GpuRows& logits, const int64_t* targets,
                          float* loss, std::optional<float> scale, void* stream, float cap) {
  if (sizes.rows == 0) return;
  const auto with = [&](const auto& of_cap) {
    with_number(sizes.number, [&](auto x) {
      launch_logit_rows<decltype(x)>(sizes, logits, targets, loss, scale, of_cap, stream);
    });
  };
  if (cap > 0)
    with(Capped{cap, 1 / (cap * cap)});
  else
    with(Uncapped{});
}

}  // namespace trireme
