// A block is a part of one row, a thread a chunk of it.
#include "trireme/kernels/activation_kernel.h"
#include "trireme/kernels/gpu_chunks.h"

namespace trireme {
namespace {

constexpr int kActivationThreads = 256;

struct ActivationArguments {
  int64_t width;
  GpuRows dact, in, act;  // `in`: gate_up or x
  unsigned blocks_of_row;
  bool aligned;
};

// kernels/glu_gate.h: a(x) and a'(x).
template <GluGate gate>
__device__ inline float argument(float x) {
  return gate == GluGate::silu ? x : x * (kGeluLinear + kGeluCubic * x * x);
}
template <GluGate gate>
__device__ inline float slope(float x) {
  return gate == GluGate::silu ? 1.0F : kGeluLinear + 3 * kGeluCubic * x * x;
}

template <typename T, GluGate gate>
__device__ inline float sigmoid(float x) {
  return quotient<T>(1, 1 + exponential<T>(-argument<gate>(x)));
}

// This thread's chunk.
struct RowPart {
  int64_t row, column, count;

  __device__ explicit RowPart(const ActivationArguments& sizes) {
    const unsigned part = blockIdx.x % sizes.blocks_of_row;
    row = blockIdx.x / sizes.blocks_of_row;
    column = (static_cast<int64_t>(part) * kActivationThreads + threadIdx.x) * kChunk;
    count = sizes.width - column;
  }
  template <typename T>
  __device__ T* of(const GpuRows& rows) const {
    return static_cast<T*>(rows.data) + row * rows.stride + column;
  }
};

template <typename T, GluGate kind>
__global__ void __launch_bounds__(kActivationThreads) glu_forward(ActivationArguments to) {
  const RowPart part(to);
  const T* const from = part.of<T>(to.in);
  float gate[kChunk], up[kChunk];
  load_chunk(gate, from, part.count, to.aligned);
  load_chunk(up, from + to.width, part.count, to.aligned);
#pragma unroll
  for (int i = 0; i < kChunk; ++i) gate[i] = gate[i] * sigmoid<T, kind>(gate[i]) * up[i];
  store_chunk(part.of<T>(to.act), gate, part.count, to.aligned);
}

// With f = gate s: f' = s (1 + (gate - f) a').
template <typename T, GluGate kind>
__global__ void __launch_bounds__(kActivationThreads) glu_back(ActivationArguments to) {
  const RowPart part(to);
  T* const from = part.of<T>(to.in);
  float gate[kChunk], up[kChunk], d[kChunk];
  load_chunk(gate, from, part.count, to.aligned);
  load_chunk(up, from + to.width, part.count, to.aligned);
  load_chunk(d, part.of<const T>(to.dact), part.count, to.aligned);
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    const float s = sigmoid<T, kind>(gate[i]), f = gate[i] * s, dup = f * d[i];
    gate[i] = s * (1 + (gate[i] - f) * slope<kind>(gate[i])) * d[i] * up[i];
    d[i] = f * up[i];
    up[i] = dup;
  }
  store_chunk(from, gate, part.count, to.aligned);
  store_chunk(from + to.width, up, part.count, to.aligned);
  store_chunk(part.of<T>(to.act), d, part.count, to.aligned);
}

// With P = P(X <= x) and p the density of a standard normal X: act = x P, d(act) = P + x p.
template <typename T>
__global__ void __launch_bounds__(kActivationThreads) exact_gelu_back(ActivationArguments to) {
  const RowPart part(to);
  T *const to_dx = part.of<T>(to.dact), *const to_act = part.of<T>(to.in);
  float x[kChunk], d[kChunk];
  load_chunk(x, to_act, part.count, to.aligned);
  load_chunk(d, to_dx, part.count, to.aligned);
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    const float twice = 1 + erff(x[i] * 0.707106781F);
    const float density = exponential<T>(-0.5F * x[i] * x[i]) * 0.398942280F;
    d[i] *= 0.5F * twice + x[i] * density;
    x[i] *= 0.5F * twice;
  }
  store_chunk(to_dx, d, part.count, to.aligned);
  store_chunk(to_act, x, part.count, to.aligned);
}

// kernel_of(a value of the tensors' type): the kernel.
template <typename F>
void launch_activation(const F& kernel_of, const ActivationSizes& sizes, ActivationArguments to,
                       void* stream) {
  if (sizes.rows == 0 || sizes.width == 0) return;
  constexpr int64_t kOfBlock = int64_t{kActivationThreads} * kChunk;
  const int64_t blocks_of_row = (sizes.width + kOfBlock - 1) / kOfBlock;
  to.width = sizes.width;
  to.blocks_of_row = static_cast<unsigned>(blocks_of_row);
  to.aligned = sizes.width % kChunk == 0 && aligned_chunks(to.dact, sizes.number) &&
               aligned_chunks(to.in, sizes.number) && aligned_chunks(to.act, sizes.number);
  with_number(sizes.number, [&](auto x) {
    launch(kernel_of(x), {sizes.rows * blocks_of_row, kActivationThreads}, stream, to);
  });
}

}  // namespace

void launch_glu(GluGate gate, const ActivationSizes& sizes, const GpuRows& gate_up, const GpuRows& act,
                void* stream) {
  const auto kernel_of = [gate](auto x) {
    using T = decltype(x);
    return gate == GluGate::silu ? glu_forward<T, GluGate::silu> : glu_forward<T, GluGate::gelu_tanh>;
  };
  launch_activation(kernel_of, sizes, {0, {}, gate_up, act, 0, false}, stream);
}

void launch_glu_backward(GluGate gate, const ActivationSizes& sizes, const GpuRows& dact,
                         const GpuRows& gate_up, const GpuRows& act, void* stream) {
  const auto kernel_of = [gate](auto x) {
    using T = decltype(x);
    return gate == GluGate::silu ? glu_back<T, GluGate::silu> : glu_back<T, GluGate::gelu_tanh>;
  };
  launch_activation(kernel_of, sizes, {0, dact, gate_up, act, 0, false}, stream);
}

void launch_exact_gelu_backward(const ActivationSizes& sizes, const GpuRows& dact, const GpuRows& x,
                                void* stream) {
  launch_activation([](auto of) { return exact_gelu_back<decltype(of)>; }, sizes, {0, dact, x, {}, 0, false},
                    stream);
}

}  // namespace trireme
