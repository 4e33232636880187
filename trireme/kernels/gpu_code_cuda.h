// gpu_code.h for nvcc.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

namespace trireme {

template <int bytes>
struct WordOf;
template <>
struct WordOf<2> {
  using Type = uint16_t;
};
template <>
struct WordOf<4> {
  using Type = uint32_t;
};
template <>
struct WordOf<8> {
  using Type = uint2;
};
template <>
struct WordOf<16> {
  using Type = uint4;
};

// One access of sizeof(T) * n bytes, to which the address is aligned.
template <int n, typename T>
__device__ inline Values<T, n> load_global(const T* from) {
  using Word = typename WordOf<sizeof(T) * n>::Type;
  const Word word = *reinterpret_cast<const Word*>(from);
  Values<T, n> values;
  memcpy(&values, &word, sizeof(values));
  return values;
}
template <typename T>
__device__ inline T load_global(const T* from) {
  return *from;
}
template <typename T, int n>
__device__ inline void store_global(T* to, const Values<T, n>& values) {
  using Word = typename WordOf<sizeof(T) * n>::Type;
  Word word;
  memcpy(&word, &values, sizeof(values));
  *reinterpret_cast<Word*>(to) = word;
}
template <typename T>
__device__ inline void store_global(T* to, T value) {
  *to = value;
}

// An array of the block.
template <typename T, int n>
struct alignas(16) Shared {
  T values[n];
  __device__ T& operator[](int i) { return values[i]; }
  // `count` elements from i on in one access, to whose size i is aligned.
  template <int count>
  __device__ Values<T, count> load(int i) const {
    return *reinterpret_cast<const Values<T, count>*>(values + i);
  }
  template <int count>
  __device__ void store(int i, const Values<T, count>& from) {
    *reinterpret_cast<Values<T, count>*>(values + i) = from;
  }
};

__device__ inline float widened(float value) {
  return value;
}
__device__ inline float widened(Bf16 value) {
  return __uint_as_float(static_cast<uint32_t>(value.bits) << 16);
}
__device__ inline float widened(Fp16 value) {
  return __half2float(__ushort_as_half(value.bits));
}
// To the nearest, ties to even.
template <typename T>
__device__ T narrowed(float value);
template <>
__device__ inline float narrowed<float>(float value) {
  return value;
}
template <>
__device__ inline Bf16 narrowed<Bf16>(float value) {
  return {__bfloat16_as_ushort(__float2bfloat16_rn(value))};
}
template <>
__device__ inline Fp16 narrowed<Fp16>(float value) {
  return {__half_as_ushort(__float2half_rn(value))};
}

__device__ inline float inverse_root(float value) {
  return rsqrtf(value);
}

// `stream`: a cudaStream_t of the current device. The caller asks cudaGetLastError.
template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), const LaunchSize& size, void* stream,
            const Arguments&... arguments) {
  kernel<<<static_cast<unsigned>(size.blocks), static_cast<unsigned>(size.threads), 0,
           static_cast<cudaStream_t>(stream)>>>(arguments...);
}

}  // namespace trireme
