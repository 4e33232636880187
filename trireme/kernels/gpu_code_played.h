// gpu_code.h for the host: CUDA's names, each of which asks the player (tests/kernels/played_gpu.h, which
// defines what is declared here) whether a GPU would have done it.
#pragma once

#include <cmath>
#include <functional>

// NOLINTBEGIN(bugprone-reserved-identifier): CUDA's names
#define __global__
#define __device__
#define __host__
#define __shared__ static thread_local
#define __launch_bounds__(...)

namespace trireme {

struct PlayedIndex {
  unsigned x = 0;
};
inline thread_local PlayedIndex threadIdx, blockIdx, blockDim, gridDim;

namespace played {

// Where a kernel's source calls.
struct SourceLine {
  const char* file = nullptr;
  int line = 0;
};

enum class ShuffleKind { from, exclusive_or, down };

void play(const LaunchSize& size, const std::function<void()>& thread);
void wait_for_block(const SourceLine& line);
void wait_for_warp(unsigned mask, const SourceLine& line);
// The bits that the lane `argument` names gave.
uint64_t lane_bits(ShuffleKind kind, unsigned mask, uint64_t bits, int argument, const SourceLine& line);

// Where the bytes of an access to global memory lie on the host, counted.
const void* to_read(const void* address, int64_t bytes);
void* to_write(void* address, int64_t bytes);

// Who last used an element of shared memory.
struct Use {
  int64_t launch = -1, block = -1, block_epoch = -1, warp_epoch = -1;
  int thread = kNobody, warp = -1;
  static constexpr int kNobody = -1, kOneWarp = -2, kSeveralWarps = -3;  // threads
  static constexpr int64_t kSeveralBlocks = -2;
};
struct SharedElement {
  Use write, read;
};
void use_shared(SharedElement& element, bool writes, int64_t index, int64_t size);
// Of an access to `count` elements at once.
void check_shared_alignment(int64_t index, int64_t count);

template <typename T>
uint64_t bits_of(T value) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(value));
  return bits;
}
template <typename T>
T of_bits(uint64_t bits) {
  T value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

}  // namespace played

inline void __syncthreads(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  played::wait_for_block({file, line});
}
inline void __syncwarp(unsigned mask = 0xffffffffU, const char* file = __builtin_FILE(),
                       int line = __builtin_LINE()) {
  played::wait_for_warp(mask, {file, line});
}
template <typename T>
T __shfl_sync(unsigned mask, T value, int lane, const char* file = __builtin_FILE(),
              int line = __builtin_LINE()) {
  return played::of_bits<T>(
      played::lane_bits(played::ShuffleKind::from, mask, played::bits_of(value), lane, {file, line}));
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  return played::of_bits<T>(played::lane_bits(played::ShuffleKind::exclusive_or, mask, played::bits_of(value),
                                              lanes, {file, line}));
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, int lanes, const char* file = __builtin_FILE(),
                   int line = __builtin_LINE()) {
  return played::of_bits<T>(
      played::lane_bits(played::ShuffleKind::down, mask, played::bits_of(value), lanes, {file, line}));
}
inline float __expf(float x) {
  return std::exp(x);
}
inline float __fdividef(float x, float y) {
  return x / y;
}
// NOLINTEND(bugprone-reserved-identifier)

template <int n, typename T>
Values<T, n> load_global(const T* from) {
  Values<T, n> values;
  memcpy(&values, played::to_read(from, sizeof(values)), sizeof(values));
  return values;
}
template <typename T>
T load_global(const T* from) {
  T value;
  memcpy(&value, played::to_read(from, sizeof(value)), sizeof(value));
  return value;
}
template <typename T, int n>
void store_global(T* to, const Values<T, n>& values) {
  memcpy(played::to_write(to, sizeof(values)), &values, sizeof(values));
}
template <typename T>
void store_global(T* to, T value) {
  memcpy(played::to_write(to, sizeof(value)), &value, sizeof(value));
}

template <typename T, int n>
class Shared {
 public:
  class Element {
   public:
    Element(Shared& array, int index) : array_(array), index_(index) {}
    operator T() const {
      played::use_shared(array_.element(index_), false, index_, n);
      return array_.values_[index_];
    }
    Element& operator=(T value) {
      played::use_shared(array_.element(index_), true, index_, n);
      array_.values_[index_] = value;
      return *this;
    }
    Element& operator=(const Element& other) { return *this = static_cast<T>(other); }
    Element& operator+=(T value) { return *this = static_cast<T>(*this) + value; }

   private:
    Shared& array_;
    int index_;
  };
  Element operator[](int index) { return {*this, index}; }
  template <int count>
  Values<T, count> load(int index) {
    played::check_shared_alignment(index, count);
    Values<T, count> values;
    for (int i = 0; i < count; ++i) values.at[i] = (*this)[index + i];
    return values;
  }
  template <int count>
  void store(int index, const Values<T, count>& from) {
    played::check_shared_alignment(index, count);
    for (int i = 0; i < count; ++i) (*this)[index + i] = from.at[i];
  }

 private:
  // What lies outside is refused by its index.
  played::SharedElement& element(int index) { return elements_[index < 0 || index >= n ? 0 : index]; }

  T values_[n] = {};
  played::SharedElement elements_[n];
};

float widened(Bf16 value);
float widened(Fp16 value);
inline float widened(float value) {
  return value;
}
template <typename T>
T narrowed(float value);
template <>
inline float narrowed<float>(float value) {
  return value;
}
template <>
Bf16 narrowed<Bf16>(float value);
template <>
Fp16 narrowed<Fp16>(float value);

inline float inverse_root(float value) {
  return 1.0F / std::sqrt(value);
}

template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), const LaunchSize& size, void* /*stream*/,
            const Arguments&... arguments) {
  played::play(size, [&] { kernel(arguments...); });
}

}  // namespace trireme
