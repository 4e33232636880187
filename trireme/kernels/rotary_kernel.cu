// A group of lanes takes a head: each lane a chunk of values and the chunk of those that they are rotated
// with. Values that stay are dealt out the same way, over the lanes that follow. Lanes of a group meet in the
// norm's sums. Groups walk over the heads of all tokens.
#include <algorithm>

#include "trireme/kernels/gpu_chunks.h"
#include "trireme/kernels/partial_sums.h"
#include "trireme/kernels/rotary_kernel.h"

namespace trireme {
namespace {

constexpr int kRotaryThreads = 256;
constexpr int64_t kBlocks = 4;  // of a multiprocessor, by the registers of their threads

struct RotaryArguments {
  RotaryKernel rotary;
  int64_t staying_pairs;  // 0 where they are left as they lie
  int turning_lanes;      // of a group: the first
  int lanes;              // of a group, a power of 2
  bool aligned, aligned_norms;
  float* partial;
};

// A lane's part of a head.
struct Halves {
  float a[kChunk], b[kChunk];
};

// What lies where for a lane.
struct LaneWork {
  bool turns;
  int64_t a, b, count;    // columns [a, a + count) and [b, b + count) are pairs
  int64_t group, groups;  // of the grid

  __device__ explicit LaneWork(const RotaryArguments& arguments) {
    const int lane = static_cast<int>(threadIdx.x) % arguments.lanes;
    const int64_t r = arguments.rotary.turning_pairs;
    turns = lane < arguments.turning_lanes;
    const int64_t pairs = turns ? r : arguments.staying_pairs;
    const int64_t begin = static_cast<int64_t>(turns ? lane : lane - arguments.turning_lanes) * kChunk;
    const int64_t left = pairs - begin;
    count = left < 0 ? 0 : left < kChunk ? left : kChunk;
    a = turns ? begin : 2 * r + begin;
    b = a + pairs;
    group = global_thread() / arguments.lanes;
    groups = global_threads() / arguments.lanes;
  }
};

template <typename T>
__device__ void load_halves(Halves& x, const GpuRows& rows, int64_t token, int64_t head, int64_t count,
                            const LaneWork& lane, const RotaryArguments& arguments) {
  const T* from = static_cast<const T*>(rows.data) + token * rows.stride + head * arguments.rotary.head_dim;
  load_chunk(x.a, from + lane.a, count, arguments.aligned);
  load_chunk(x.b, from + lane.b, count, arguments.aligned);
}
template <typename T>
__device__ void store_halves(const GpuRows& rows, int64_t token, int64_t head, const Halves& x, int64_t count,
                             const LaneWork& lane, const RotaryArguments& arguments) {
  T* to = static_cast<T*>(rows.data) + token * rows.stride + head * arguments.rotary.head_dim;
  store_chunk(to + lane.a, x.a, count, arguments.aligned);
  store_chunk(to + lane.b, x.b, count, arguments.aligned);
}
__device__ inline void load_norm(Halves& weight, const void* norm, const LaneWork& lane,
                                 const RotaryArguments& arguments) {
  const GpuNumber number = arguments.rotary.norm_number;
  load_numbers(weight.a, norm, number, lane.a, lane.count, arguments.aligned_norms);
  load_numbers(weight.b, norm, number, lane.b, lane.count, arguments.aligned_norms);
  if (!arguments.rotary.norms_add_one) return;
  for (int i = 0; i < kChunk; ++i) {
    weight.a[i] += 1;
    weight.b[i] += 1;
  }
}

enum class Turn { forward, back };

__device__ inline void turn_halves(Halves& x, int64_t token, Turn turn, int64_t count, const LaneWork& lane,
                                   const RotaryArguments& arguments) {
  if (!lane.turns) return;
  const RotaryKernel& rotary = arguments.rotary;
  const unsigned row =
      static_cast<unsigned>(rotary.first_row + token) % static_cast<unsigned>(rotary.table_rows);
  const int64_t at = row * rotary.turning_pairs + lane.a;
  float cos[kChunk], sin[kChunk];
  load_chunk(cos, rotary.cos + at, count, arguments.aligned);
  load_chunk(sin, rotary.sin + at, count, arguments.aligned);
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    const float s = turn == Turn::forward ? sin[i] : -sin[i], a = x.a[i];
    x.a[i] = a * cos[i] - x.b[i] * s;
    x.b[i] = x.b[i] * cos[i] + a * s;
  }
}

// Over the lanes of a group, each of which gets the sum.
__device__ inline float group_sum(float value, int lanes) {
  for (int apart = lanes / 2; apart > 0; apart /= 2) value += __shfl_xor_sync(kWholeWarp, value, apart);
  return value;
}

// Heads [first, first + heads) of every token. All lanes of a warp take as many steps, for they meet in sums.
template <typename F>
__device__ void each_head(int64_t first, int64_t heads, const LaneWork& lane,
                          const RotaryArguments& arguments, const F& body) {
  const int64_t items = arguments.rotary.tokens * heads;
  for (int64_t item = lane.group; item - lane.group % (kWarp / arguments.lanes) < items; item += lane.groups)
    body(static_cast<unsigned>(item) / static_cast<unsigned>(heads),
         first + static_cast<unsigned>(item) % static_cast<unsigned>(heads), item < items ? lane.count : 0);
}

template <typename T>
__device__ void copy_other_heads(const LaneWork& lane, const RotaryArguments& arguments) {
  const RotaryKernel& rotary = arguments.rotary;
  if (rotary.from.data == rotary.to.data) return;
  each_head(rotary.rotated_heads, rotary.heads - rotary.rotated_heads, lane, arguments,
            [&](int64_t token, int64_t head, int64_t count) {
              Halves x;
              load_halves<T>(x, rotary.from, token, head, count, lane, arguments);
              store_halves<T>(rotary.to, token, head, x, count, lane, arguments);
            });
}

// Without norms, both ways.
template <typename T, Turn turn>
__global__ void __launch_bounds__(kRotaryThreads, kBlocks) rotate(RotaryArguments arguments) {
  const RotaryKernel& rotary = arguments.rotary;
  const LaneWork lane(arguments);
  each_head(0, rotary.rotated_heads, lane, arguments, [&](int64_t token, int64_t head, int64_t count) {
    Halves x;
    load_halves<T>(x, rotary.from, token, head, count, lane, arguments);
    turn_halves(x, token, turn, count, lane, arguments);
    store_halves<T>(rotary.to, token, head, x, count, lane, arguments);
  });
  copy_other_heads<T>(lane, arguments);
}

// `norm`: of heads [first, first + heads).
template <typename T>
__device__ void norm_heads_forward(int64_t first, int64_t heads, const void* norm, const LaneWork& lane,
                                   const RotaryArguments& arguments) {
  Halves weight;
  load_norm(weight, norm, lane, arguments);
  each_head(first, heads, lane, arguments, [&](int64_t token, int64_t head, int64_t count) {
    const RotaryKernel& rotary = arguments.rotary;
    Halves x;
    load_halves<T>(x, rotary.from, token, head, count, lane, arguments);
    float squares = 0;
    for (int i = 0; i < kChunk; ++i) squares += x.a[i] * x.a[i] + x.b[i] * x.b[i];
    const float r =
        inverse_root(group_sum(squares, arguments.lanes) / static_cast<float>(rotary.head_dim) + rotary.eps);
    for (int i = 0; i < kChunk; ++i) {
      x.a[i] *= r * weight.a[i];
      x.b[i] *= r * weight.b[i];
    }
    turn_halves(x, token, Turn::forward, count, lane, arguments);
    store_halves<T>(rotary.to, token, head, x, count, lane, arguments);
  });
}

template <typename T>
__global__ void __launch_bounds__(kRotaryThreads, kRotaryNormBlocks) rotate_norms(RotaryArguments arguments) {
  const RotaryKernel& rotary = arguments.rotary;
  const LaneWork lane(arguments);
  norm_heads_forward<T>(0, rotary.query_heads, rotary.q_norm, lane, arguments);
  norm_heads_forward<T>(rotary.query_heads, rotary.rotated_heads - rotary.query_heads, rotary.k_norm, lane,
                        arguments);
  copy_other_heads<T>(lane, arguments);
}

// The sums of the block's lanes: [lane of a group][value][group].
struct NormSums {
  Shared<float, 2 * kChunk * kRotaryThreads> parts;
};

// Of heads [first, first + heads), with hat = x r and g = d w:   to = r (g - hat mean(g hat)).
template <typename T>
__device__ void norm_heads_backward(int64_t first, int64_t heads, const void* norm, float* to_sums,
                                    NormSums& scratch, const LaneWork& lane,
                                    const RotaryArguments& arguments) {
  const RotaryKernel& rotary = arguments.rotary;
  const float width = static_cast<float>(rotary.head_dim);
  Halves weight, sums = {};
  load_norm(weight, norm, lane, arguments);
  each_head(first, heads, lane, arguments, [&](int64_t token, int64_t head, int64_t count) {
    Halves d, x;
    load_halves<T>(d, rotary.from, token, head, count, lane, arguments);
    load_halves<T>(x, rotary.before, token, head, count, lane, arguments);
    turn_halves(d, token, Turn::back, count, lane, arguments);
    float squares = 0, product = 0;
    for (int i = 0; i < kChunk; ++i) {
      squares += x.a[i] * x.a[i] + x.b[i] * x.b[i];
      product += d.a[i] * weight.a[i] * x.a[i] + d.b[i] * weight.b[i] * x.b[i];
    }
    const float r = inverse_root(group_sum(squares, arguments.lanes) / width + rotary.eps);
    const float mean = group_sum(product, arguments.lanes) * r / width;
    for (int i = 0; i < kChunk; ++i) {
      const float hat_a = x.a[i] * r, hat_b = x.b[i] * r;
      sums.a[i] += d.a[i] * hat_a;
      sums.b[i] += d.b[i] * hat_b;
      d.a[i] = r * (d.a[i] * weight.a[i] - hat_a * mean);
      d.b[i] = r * (d.b[i] * weight.b[i] - hat_b * mean);
    }
    store_halves<T>(rotary.to, token, head, d, count, lane, arguments);
  });

  const int thread = static_cast<int>(threadIdx.x);
  for (int i = 0; i < kChunk; ++i) {
    scratch.parts[i * kRotaryThreads + thread] = sums.a[i];
    scratch.parts[(kChunk + i) * kRotaryThreads + thread] = sums.b[i];
  }
  __syncthreads();
  const int turning = static_cast<int>(2 * rotary.turning_pairs);
  for (int column = thread; column < static_cast<int>(rotary.head_dim); column += kRotaryThreads) {
    const bool turns = column < turning;
    const int pairs = static_cast<int>(turns ? rotary.turning_pairs : arguments.staying_pairs);
    const int at = turns ? column : column - turning, within = at % pairs;
    const int value = within % kChunk + (at < pairs ? 0 : kChunk);
    float sum = 0;
    for (int other = within / kChunk + (turns ? 0 : arguments.turning_lanes); other < kRotaryThreads;
         other += arguments.lanes)
      sum += scratch.parts[value * kRotaryThreads + other];
    store_global(to_sums + column, sum);
  }
  __syncthreads();
}

template <typename T>
__global__ void __launch_bounds__(kRotaryThreads, kRotaryNormBlocks)
    rotate_norms_backward(RotaryArguments arguments) {
  __shared__ NormSums scratch;
  const RotaryKernel& rotary = arguments.rotary;
  const LaneWork lane(arguments);
  float* const sums = arguments.partial + static_cast<int64_t>(blockIdx.x) * 2 * rotary.head_dim;
  norm_heads_backward<T>(0, rotary.query_heads, rotary.q_norm, sums, scratch, lane, arguments);
  norm_heads_backward<T>(rotary.query_heads, rotary.rotated_heads - rotary.query_heads, rotary.k_norm,
                         sums + rotary.head_dim, scratch, lane, arguments);
  copy_other_heads<T>(lane, arguments);
}

RotaryArguments arguments_of(const RotaryKernel& rotary) {
  RotaryArguments arguments{rotary, 0, 0, 1, false, false, nullptr};
  arguments.rotary.first_row %= rotary.table_rows;
  const int64_t staying = rotary.head_dim / 2 - rotary.turning_pairs;
  const bool left = rotary.q_norm == nullptr && rotary.from.data == rotary.to.data;
  arguments.staying_pairs = left ? 0 : staying;
  arguments.turning_lanes = static_cast<int>(rotary_chunks(rotary.turning_pairs));
  while (arguments.lanes < arguments.turning_lanes + rotary_chunks(arguments.staying_pairs))
    arguments.lanes *= 2;
  const bool whole = rotary.turning_pairs % kChunk == 0 && staying % kChunk == 0;
  const auto at_16 = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; };
  arguments.aligned = whole && aligned_chunks(rotary.from, rotary.number) &&
                      aligned_chunks(rotary.to, rotary.number) &&
                      aligned_chunks(rotary.before, rotary.number) && at_16(rotary.cos) && at_16(rotary.sin);
  arguments.aligned_norms = whole && at_16(rotary.q_norm) && at_16(rotary.k_norm);
  return arguments;
}

LaunchSize size_of(const RotaryKernel& rotary, const RotaryArguments& arguments,
                   int64_t blocks_of_multiprocessor) {
  const int64_t threads = rotary.tokens * rotary.heads * arguments.lanes;
  const int64_t needed = (threads + kRotaryThreads - 1) / kRotaryThreads;
  const int64_t resident =
      std::min<int64_t>(rotary.multiprocessors, kMostMultiprocessors) * blocks_of_multiprocessor;
  return {needed < resident ? needed : resident, kRotaryThreads};
}

}  // namespace

void launch_rotary(const RotaryKernel& rotary, void* stream) {
  if (rotary.tokens == 0) return;
  const RotaryArguments arguments = arguments_of(rotary);
  const bool norms = rotary.q_norm != nullptr;
  const LaunchSize size = size_of(rotary, arguments, norms ? kRotaryNormBlocks : kBlocks);
  with_number(rotary.number, [&](auto of) {
    using T = decltype(of);
    launch(norms ? rotate_norms<T> : rotate<T, Turn::forward>, size, stream, arguments);
  });
}

int64_t rotary_partial_rows(const RotaryKernel& rotary) {
  return size_of(rotary, arguments_of(rotary), kRotaryNormBlocks).blocks;
}

void launch_rotary_backward(const RotaryKernel& rotary, float* partial, float* dq_norm, float* dk_norm,
                            void* stream) {
  if (rotary.tokens == 0) return;
  RotaryArguments arguments = arguments_of(rotary);
  arguments.partial = partial;
  const bool norms = rotary.q_norm != nullptr;
  const LaunchSize size = size_of(rotary, arguments, norms ? kRotaryNormBlocks : kBlocks);
  with_number(rotary.number, [&](auto of) {
    using T = decltype(of);
    launch(norms ? rotate_norms_backward<T> : rotate<T, Turn::back>, size, stream, arguments);
  });
  if (!norms) return;
  const int64_t D = rotary.head_dim;
  launch_partial_sums(partial, size.blocks, 2 * D, D, dq_norm, stream);
  launch_partial_sums(partial + D, size.blocks, 2 * D, D, dk_norm, stream);
}

}  // namespace trireme
