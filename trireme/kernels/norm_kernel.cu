// A block takes every so-many-th row. A thread holds the same columns of each: the weights stay in registers,
// and so do the sums of their gradients. Memory traffic determines the time: forward 2 values an element,
// backward 4 of an RMS norm and 3 of a LayerNorm.
#include "trireme/kernels/gpu_chunks.h"
#include "trireme/kernels/norm_kernel.h"
#include "trireme/kernels/partial_sums.h"

namespace trireme {
namespace {

// How a row is spread: threads of a block at most, and chunks of each.
template <int threads, int chunks>
struct Spread {
  static constexpr int kThreads = threads, kChunks = chunks;
};

struct NormArguments {
  int64_t rows, width;
  GpuRows x, y, dy, dx;
  const void *weight, *bias;
  GpuNumber weight_number;
  bool adds_one;
  float eps;
  bool aligned, aligned_vectors;  // rows of x, y, dy, dx; weight and bias
  float* partial;                 // of the backward
};

// The columns of a thread.
template <int chunks>
struct Columns {
  float at[chunks][kChunk];

  static __device__ int64_t begin(int chunk) {
    return (static_cast<int64_t>(chunk) * blockDim.x + threadIdx.x) * kChunk;
  }
  template <typename T>
  __device__ void load(const GpuRows& rows, int64_t row, const NormArguments& norm) {
    const T* from = static_cast<const T*>(rows.data) + row * rows.stride;
#pragma unroll
    for (int c = 0; c < chunks; ++c) load_chunk(at[c], from + begin(c), norm.width - begin(c), norm.aligned);
  }
  template <typename T>
  __device__ void store(const GpuRows& rows, int64_t row, const NormArguments& norm) const {
    T* to = static_cast<T*>(rows.data) + row * rows.stride;
#pragma unroll
    for (int c = 0; c < chunks; ++c) store_chunk(to + begin(c), at[c], norm.width - begin(c), norm.aligned);
  }
  __device__ void load_vector(const void* from, const NormArguments& norm) {
#pragma unroll
    for (int c = 0; c < chunks; ++c)
      load_numbers(at[c], from, norm.weight_number, begin(c), norm.width - begin(c), norm.aligned_vectors);
  }
  __device__ void load_weight(const NormArguments& norm) {
    load_vector(norm.weight, norm);
    if (norm.adds_one) each([](float& value, int, int) { value += 1; });
  }
  // f(value, chunk, place) for each.
  template <typename F>
  __device__ void each(const F& f) {
#pragma unroll
    for (int c = 0; c < chunks; ++c)
#pragma unroll
      for (int i = 0; i < kChunk; ++i) f(at[c][i], c, i);
  }
};

// Subtracts the row's mean. Columns beyond the row stay 0.
template <int chunks>
__device__ void centre(Columns<chunks>& x, const NormArguments& norm, BlockSums& scratch, int& turn) {
  float sum[1] = {0};
  x.each([&](float value, int, int) { sum[0] += value; });
  block_sums(sum, scratch, turn);
  const float mean = sum[0] / static_cast<float>(norm.width);
  x.each([&](float& value, int c, int i) { value = x.begin(c) + i < norm.width ? value - mean : 0; });
}

template <typename T, NormKind kind, typename Spread>
__global__ void __launch_bounds__(Spread::kThreads) norm_forward(NormArguments norm) {
  __shared__ BlockSums scratch;
  int turn = 0;
  Columns<Spread::kChunks> weight, bias;
  weight.load_weight(norm);
  if constexpr (kind == NormKind::layer) bias.load_vector(norm.bias, norm);
  for (int64_t row = blockIdx.x; row < norm.rows; row += gridDim.x) {
    Columns<Spread::kChunks> x;
    x.template load<T>(norm.x, row, norm);
    if constexpr (kind == NormKind::layer) centre(x, norm, scratch, turn);
    float squares[1] = {0};
    x.each([&](float value, int, int) { squares[0] += value * value; });
    block_sums(squares, scratch, turn);
    const float r = inverse_root(squares[0] / static_cast<float>(norm.width) + norm.eps);
    x.each([&](float& value, int c, int i) {
      value = value * r * weight.at[c][i];
      if constexpr (kind == NormKind::layer) value += bias.at[c][i];
    });
    x.template store<T>(norm.y, row, norm);
  }
}

// With x centred, hat = x r and g = dy w:   dx = r (g - mean(g), of a LayerNorm - hat mean(g hat)).
template <typename T, NormKind kind, typename Spread>
__global__ void __launch_bounds__(Spread::kThreads) norm_backward(NormArguments norm) {
  constexpr bool kLayer = kind == NormKind::layer;
  __shared__ BlockSums scratch;
  int turn = 0;
  Columns<Spread::kChunks> weight, dweight, dbias;
  const int64_t columns = kLayer ? 2 * norm.width : norm.width;
  const GpuRows dweights{norm.partial, columns}, dbiases{norm.partial + norm.width, columns};
  weight.load_weight(norm);
  dweight.each([](float& sum, int, int) { sum = 0; });
  dbias.each([](float& sum, int, int) { sum = 0; });
  const float width = static_cast<float>(norm.width);
  for (int64_t row = blockIdx.x; row < norm.rows; row += gridDim.x) {
    Columns<Spread::kChunks> x, dy;
    x.template load<T>(norm.x, row, norm);
    dy.template load<T>(norm.dy, row, norm);
    if constexpr (kLayer) centre(x, norm, scratch, turn);
    float sums[kLayer ? 3 : 2] = {};
    x.each([&](float value, int c, int i) {
      const float g = dy.at[c][i] * weight.at[c][i];
      sums[0] += value * value;
      sums[1] += g * value;
      if constexpr (kLayer) sums[2] += g;
    });
    block_sums(sums, scratch, turn);
    const float r = inverse_root(sums[0] / width + norm.eps);
    const float mean_product = sums[1] * r / width;
    float mean = 0;
    if constexpr (kLayer) mean = sums[2] / width;
    x.each([&](float& value, int c, int i) {
      const float hat = value * r;
      dweight.at[c][i] += dy.at[c][i] * hat;
      if constexpr (kLayer) dbias.at[c][i] += dy.at[c][i];
      value = r * (dy.at[c][i] * weight.at[c][i] - mean - hat * mean_product);
    });
    if constexpr (!kLayer) {
      dy.template load<T>(norm.dx, row, norm);
      x.each([&](float& value, int c, int i) { value += dy.at[c][i]; });
    }
    x.template store<T>(norm.dx, row, norm);
  }
  dweight.template store<float>(dweights, blockIdx.x, norm);
  if constexpr (kLayer) dbias.template store<float>(dbiases, blockIdx.x, norm);
}

// Rows that registers do not hold are read again for the next step, from a cache by then. f(begin) for each
// chunk of a thread.
template <typename F>
__device__ void each_chunk(const NormArguments& norm, const F& f) {
  for (int64_t begin = static_cast<int64_t>(threadIdx.x) * kChunk; begin < norm.width;
       begin += static_cast<int64_t>(blockDim.x) * kChunk)
    f(begin);
}
template <typename T>
__device__ void load_wide(float (&to)[kChunk], const GpuRows& rows, int64_t row, int64_t begin,
                          const NormArguments& norm) {
  load_chunk(to, static_cast<const T*>(rows.data) + row * rows.stride + begin, norm.width - begin,
             norm.aligned);
}
template <typename T>
__device__ void store_wide(const GpuRows& rows, int64_t row, int64_t begin, const float (&from)[kChunk],
                           const NormArguments& norm) {
  store_chunk(static_cast<T*>(rows.data) + row * rows.stride + begin, from, norm.width - begin, norm.aligned);
}
__device__ inline void load_wide_vector(float (&to)[kChunk], const void* from, int64_t begin,
                                        const NormArguments& norm) {
  load_numbers(to, from, norm.weight_number, begin, norm.width - begin, norm.aligned_vectors);
}
__device__ inline void load_wide_weight(float (&to)[kChunk], int64_t begin, const NormArguments& norm) {
  load_wide_vector(to, norm.weight, begin, norm);
  if (norm.adds_one)
    for (int i = 0; i < kChunk; ++i) to[i] += 1;
}

// The row's mean, of a LayerNorm.
template <typename T, NormKind kind>
__device__ float wide_mean(int64_t row, const NormArguments& norm, BlockSums& scratch, int& turn) {
  if constexpr (kind == NormKind::rms) return 0;
  float sum[1] = {0}, x[kChunk];
  each_chunk(norm, [&](int64_t begin) {
    load_wide<T>(x, norm.x, row, begin, norm);
    for (int i = 0; i < kChunk; ++i) sum[0] += x[i];
  });
  block_sums(sum, scratch, turn);
  return sum[0] / static_cast<float>(norm.width);
}

template <typename T, NormKind kind>
__global__ void __launch_bounds__(kWideNormThreads) wide_norm_forward(NormArguments norm) {
  __shared__ BlockSums scratch;
  int turn = 0;
  for (int64_t row = blockIdx.x; row < norm.rows; row += gridDim.x) {
    const float mean = wide_mean<T, kind>(row, norm, scratch, turn);
    float squares[1] = {0}, x[kChunk], weight[kChunk], bias[kChunk] = {};
    each_chunk(norm, [&](int64_t begin) {
      load_wide<T>(x, norm.x, row, begin, norm);
      for (int i = 0; i < kChunk; ++i)
        if (begin + i < norm.width) squares[0] += (x[i] - mean) * (x[i] - mean);
    });
    block_sums(squares, scratch, turn);
    const float r = inverse_root(squares[0] / static_cast<float>(norm.width) + norm.eps);
    each_chunk(norm, [&](int64_t begin) {
      load_wide<T>(x, norm.x, row, begin, norm);
      load_wide_weight(weight, begin, norm);
      if constexpr (kind == NormKind::layer) load_wide_vector(bias, norm.bias, begin, norm);
      for (int i = 0; i < kChunk; ++i) x[i] = (x[i] - mean) * r * weight[i] + bias[i];
      store_wide<T>(norm.y, row, begin, x, norm);
    });
  }
}

template <typename T, NormKind kind>
__global__ void __launch_bounds__(kWideNormThreads) wide_norm_backward(NormArguments norm) {
  constexpr bool kLayer = kind == NormKind::layer;
  __shared__ BlockSums scratch;
  int turn = 0;
  const int64_t columns = kLayer ? 2 * norm.width : norm.width;
  const GpuRows dweights{norm.partial, columns}, dbiases{norm.partial + norm.width, columns};
  const float width = static_cast<float>(norm.width);
  for (int64_t row = blockIdx.x; row < norm.rows; row += gridDim.x) {
    const float mean = wide_mean<T, kind>(row, norm, scratch, turn);
    float sums[3] = {}, x[kChunk], dy[kChunk], weight[kChunk];
    each_chunk(norm, [&](int64_t begin) {
      load_wide<T>(x, norm.x, row, begin, norm);
      load_wide<T>(dy, norm.dy, row, begin, norm);
      load_wide_weight(weight, begin, norm);
      for (int i = 0; i < kChunk; ++i) {
        if (begin + i >= norm.width) continue;
        sums[0] += (x[i] - mean) * (x[i] - mean);
        sums[1] += dy[i] * weight[i] * (x[i] - mean);
        sums[2] += dy[i] * weight[i];
      }
    });
    block_sums(sums, scratch, turn);
    const float r = inverse_root(sums[0] / width + norm.eps);
    const float mean_product = sums[1] * r / width, mean_gradient = kLayer ? sums[2] / width : 0;
    each_chunk(norm, [&](int64_t begin) {
      load_wide<T>(x, norm.x, row, begin, norm);
      load_wide<T>(dy, norm.dy, row, begin, norm);
      load_wide_weight(weight, begin, norm);
      float sum[kChunk] = {}, dx[kChunk] = {};
      if (row != blockIdx.x) load_wide<float>(sum, dweights, blockIdx.x, begin, norm);
      if constexpr (!kLayer) load_wide<T>(dx, norm.dx, row, begin, norm);
      for (int i = 0; i < kChunk; ++i) {
        const float hat = (x[i] - mean) * r;
        sum[i] += dy[i] * hat;
        dx[i] += r * (dy[i] * weight[i] - mean_gradient - hat * mean_product);
      }
      store_wide<T>(norm.dx, row, begin, dx, norm);
      store_wide<float>(dweights, blockIdx.x, begin, sum, norm);
      if constexpr (kLayer) {
        float bias_sum[kChunk] = {};
        if (row != blockIdx.x) load_wide<float>(bias_sum, dbiases, blockIdx.x, begin, norm);
        for (int i = 0; i < kChunk; ++i) bias_sum[i] += dy[i];
        store_wide<float>(dbiases, blockIdx.x, begin, bias_sum, norm);
      }
    });
  }
}

template <typename T, NormKind kind>
struct Forward {
  template <typename Spread>
  static void launch(const LaunchSize& size, void* stream, const NormArguments& arguments) {
    trireme::launch(norm_forward<T, kind, Spread>, size, stream, arguments);
  }
  static void launch_wide(const LaunchSize& size, void* stream, const NormArguments& arguments) {
    trireme::launch(wide_norm_forward<T, kind>, size, stream, arguments);
  }
};
template <typename T, NormKind kind>
struct Backward {
  template <typename Spread>
  static void launch(const LaunchSize& size, void* stream, const NormArguments& arguments) {
    trireme::launch(norm_backward<T, kind, Spread>, size, stream, arguments);
  }
  static void launch_wide(const LaunchSize& size, void* stream, const NormArguments& arguments) {
    trireme::launch(wide_norm_backward<T, kind>, size, stream, arguments);
  }
};

// As many as a device holds at once, by the registers of their threads.
int64_t forward_blocks(const NormKernel& norm) {
  const int64_t threads = norm.kind == NormKind::layer && norm.width > kNarrowNorm ? 512 : 1024;
  const int64_t resident = threads / norm_threads(norm.width) * norm.multiprocessors;
  return norm.rows < resident ? norm.rows : resident;
}

template <typename Pass>
void launch_spread(const NormKernel& norm, int64_t blocks, const NormArguments& arguments, void* stream) {
  const LaunchSize size{blocks, static_cast<int>(norm_threads(norm.width))};
  if (norm.width <= kNarrowNorm)
    Pass::template launch<Spread<256, 1>>(size, stream, arguments);
  else if (norm.width <= kUsualNorm)
    Pass::template launch<Spread<512, 2>>(size, stream, arguments);
  else
    Pass::launch_wide(size, stream, arguments);
}

template <template <typename, NormKind> typename Pass>
void launch_pass(const NormKernel& norm, int64_t blocks, const NormArguments& arguments, void* stream) {
  with_number(norm.number, [&](auto x) {
    using T = decltype(x);
    if (norm.kind == NormKind::rms)
      launch_spread<Pass<T, NormKind::rms>>(norm, blocks, arguments, stream);
    else
      launch_spread<Pass<T, NormKind::layer>>(norm, blocks, arguments, stream);
  });
}

NormArguments arguments_of(const NormKernel& norm) {
  NormArguments arguments{};
  arguments.rows = norm.rows;
  arguments.width = norm.width;
  arguments.x = norm.x;
  arguments.weight = norm.weight;
  arguments.bias = norm.bias;
  arguments.weight_number = norm.weight_number;
  arguments.adds_one = norm.adds_one;
  arguments.eps = norm.eps;
  const bool whole = norm.width % kChunk == 0;
  arguments.aligned = whole && aligned_chunks(norm.x, norm.number);
  arguments.aligned_vectors = whole && reinterpret_cast<uintptr_t>(norm.weight) % 16 == 0 &&
                              reinterpret_cast<uintptr_t>(norm.bias) % 16 == 0;
  return arguments;
}

}  // namespace

void launch_norm(const NormKernel& norm, const GpuRows& y, void* stream) {
  if (norm.rows == 0) return;
  NormArguments arguments = arguments_of(norm);
  arguments.y = y;
  arguments.aligned = arguments.aligned && aligned_chunks(y, norm.number);
  launch_pass<Forward>(norm, forward_blocks(norm), arguments, stream);
}

void launch_norm_backward(const NormKernel& norm, const GpuRows& dy, const GpuRows& dx, float* partial,
                          float* dweight, float* dbias, void* stream) {
  if (norm.rows == 0) return;
  const int64_t blocks = norm_backward_blocks(norm.rows, norm.width, norm.multiprocessors);
  NormArguments arguments = arguments_of(norm);
  arguments.dy = dy;
  arguments.dx = dx;
  arguments.partial = partial;
  arguments.aligned = arguments.aligned && aligned_chunks(dy, norm.number) && aligned_chunks(dx, norm.number);
  launch_pass<Backward>(norm, blocks, arguments, stream);
  const bool layer = norm.kind == NormKind::layer;
  const int64_t columns = layer ? 2 * norm.width : norm.width;
  launch_partial_sums(partial, blocks, columns, norm.width, dweight, stream);
  if (layer) launch_partial_sums(partial + norm.width, blocks, columns, norm.width, dbias, stream);
}

}  // namespace trireme
