#include "trireme/kernels/gpu_chunks.h"
#include "trireme/kernels/score_tile_kernel.h"

namespace trireme {
namespace {

constexpr int kMostThreads = kScoreTile_keys / kChunk;

// tanh(x), of which a value of type X is made: in fp32 by the library, else right to 1e-7 of 1.
template <typename X>
__device__ inline float hyperbolic_tangent(float x) {
  if constexpr (sizeof(X) == 2)
    return 1 - quotient<X>(2, 1 + exponential<X>(2 * x));
  else
    return tanhf(x);
}

struct PlainScores {
  float scale;
  template <typename X>
  __device__ float of(float s) const {
    return scale * s;
  }
  __device__ float slope(float) const { return scale; }
};
struct CappedScores {
  float scale, cap;
  template <typename X>
  __device__ float of(float s) const {
    return cap * hyperbolic_tangent<X>(s * (scale / cap));
  }
  __device__ float slope(float x) const {
    const float t = x * (1 / cap);
    return scale * (1 - t) * (1 + t);
  }
};

// A thread's keys of a row.
struct RowKeys {
  int64_t at;  // of the tile's memory
  int column;
  bool there;
  int64_t begin, end;

  __device__ explicit RowKeys(const ScoreTile& tile) {
    const int64_t row = blockIdx.x, query = row % tile.rows_of_head;
    column = static_cast<int>(threadIdx.x) * kChunk;
    at = row * tile.row_keys + column;
    there = column < tile.row_keys;
    begin = tile.band.has_begin ? tile.band.begin + query : 0;
    end =
        tile.band.has_end && tile.band.end + query < tile.band.keys ? tile.band.end + query : tile.band.keys;
  }
  __device__ bool seen(int i) const { return column + i >= begin && column + i < end; }
  __device__ bool any() const { return begin < end && end > 0; }
};

// In every thread.
__device__ float block_max(float value, Shared<float, kWarp>& of_warps) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2)
    value = fmaxf(value, __shfl_xor_sync(kWholeWarp, value, lanes));
  if (lane == 0) of_warps[warp] = value;
  __syncthreads();
  value = lane < warps ? static_cast<float>(of_warps[lane]) : -INFINITY;
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2)
    value = fmaxf(value, __shfl_xor_sync(kWholeWarp, value, lanes));
  return value;
}

template <typename X, typename Scores>
__global__ void __launch_bounds__(kMostThreads)
    softmax_rows(ScoreTile tile, Scores rule, const float* scores, X* p, RunningRows running) {
  __shared__ Shared<float, kWarp> of_warps;
  __shared__ BlockSums sums;
  const RowKeys keys(tile);
  const int64_t row = blockIdx.x;
  const bool first = threadIdx.x == 0;
  const float before = first ? load_global(running.max + row) : -INFINITY;
  float x[kChunk], most = before;
  if (keys.there) load_chunk(x, scores + keys.at, kChunk, true);
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    x[i] = keys.there && keys.seen(i) ? rule.template of<X>(x[i]) : -INFINITY;
    most = fmaxf(most, x[i]);
  }
  const float now = block_max(most, of_warps);
  const float reference = now == -INFINITY ? 0 : now;  // which must not meet itself below
  float sum[1] = {0};
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    x[i] = exponential<X>(x[i] - reference);
    sum[0] += x[i];
  }
  if (keys.there) store_chunk(p + keys.at, x, kChunk, true);
  int turn = 0;
  block_sums(sum, sums, turn);
  if (!first) return;
  const float shrink = exponential<X>(before - reference), was = load_global(running.sum + row);
  store_global(running.max + row, now);
  store_global(running.rescale + row, shrink);
  if (keys.any()) store_global(running.sum + row, (was == kNoKeysYet ? 0 : was * shrink) + sum[0]);
}

template <typename X, typename Scores>
__global__ void __launch_bounds__(kMostThreads)
    gradient_rows(ScoreTile tile, Scores rule, const float* scores, const float* d_p, X* p, X* d_s,
                  const float* lse, const float* delta) {
  const RowKeys keys(tile);
  const int64_t row = blockIdx.x;
  const bool first = static_cast<int>(threadIdx.x) % kWarp == 0;
  const float lse_of_row = __shfl_sync(kWholeWarp, first ? load_global(lse + row) : 0.0F, 0);
  const float delta_of_row = __shfl_sync(kWholeWarp, first ? load_global(delta + row) : 0.0F, 0);
  if (!keys.there) return;
  float x[kChunk], gradient[kChunk];
  load_chunk(x, scores + keys.at, kChunk, true);
  load_chunk(gradient, d_p + keys.at, kChunk, true);
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    const float score = rule.template of<X>(x[i]), slope = rule.slope(score);
    x[i] = keys.seen(i) ? exponential<X>(score - lse_of_row) : 0;
    gradient[i] = keys.seen(i) ? x[i] * (gradient[i] - delta_of_row) * slope : 0;
  }
  store_chunk(p + keys.at, x, kChunk, true);
  store_chunk(d_s + keys.at, gradient, kChunk, true);
}

// Calls with(a value of p's type, the scores' rule, the launch's size).
template <typename F>
void with_kinds(const ScoreTile& tile, GpuNumber number, const F& with) {
  const int64_t threads = (tile.row_keys / kChunk + kWarp - 1) / kWarp * kWarp;
  const LaunchSize size{tile.rows, static_cast<int>(threads)};
  const auto of_rule = [&](const auto& rule) { with_number(number, [&](auto x) { with(x, rule, size); }); };
  if (tile.rows == 0 || tile.row_keys == 0) return;
  if (tile.cap > 0)
    of_rule(CappedScores{tile.scale, tile.cap});
  else
    of_rule(PlainScores{tile.scale});
}

}  // namespace

void launch_softmax_tile(const ScoreTile& tile, GpuNumber number, const float* scores, void* p,
                         const RunningRows& running, void* stream) {
  with_kinds(tile, number, [&](auto x, const auto& rule, const LaunchSize& size) {
    using X = decltype(x);
    launch(softmax_rows<X, std::decay_t<decltype(rule)>>, size, stream, tile, rule, scores,
           static_cast<X*>(p), running);
  });
}

void launch_gradient_tile(const ScoreTile& tile, GpuNumber number, const float* scores, const float* d_p,
                          void* p, void* d_s, const float* lse, const float* delta, void* stream) {
  with_kinds(tile, number, [&](auto x, const auto& rule, const LaunchSize& size) {
    using X = decltype(x);
    launch(gradient_rows<X, std::decay_t<decltype(rule)>>, size, stream, tile, rule, scores, d_p,
           static_cast<X*>(p), static_cast<X*>(d_s), lse, delta);
  });
}

}  // namespace trireme
