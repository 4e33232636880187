// Vectors of 16 floats in the compiler's own notation. Each body is inlined into one function an instruction
// set.
#include "trireme/attention/softmax_tile.h"

#include <cstring>
#include <limits>

namespace trireme {

namespace {

using Float16 = float __attribute__((vector_size(64)));
using Int16 = int32_t __attribute__((vector_size(64)));
using Word16 = uint32_t __attribute__((vector_size(64)));
using Short16 = uint16_t __attribute__((vector_size(32)));

constexpr int64_t kLanes = 16;
constexpr int64_t kColumns = 64;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

#define TRIREME_INLINE inline __attribute__((always_inline))

TRIREME_INLINE void load(const float* from, Float16& to) {
  std::memcpy(&to, from, sizeof(to));
}
TRIREME_INLINE void store(const Float16& from, float* to) {
  std::memcpy(to, &from, sizeof(from));
}
TRIREME_INLINE void fill(float value, Float16& to) {
  to = Float16{} + value;
}

// x = 2^x, zero below the normal numbers; NaN stays NaN. The integer part moves into the exponent bits; the
// rest, in [-1/2, 1/2], goes through a polynomial whose relative error is below 1e-8 before rounding.
TRIREME_INLINE void exp2_in_place(Float16& x) {
  const Int16 vanishes = x < -126.0f;
  Float16 shifted = x + 12582912.0f;  // 1.5 * 2^23: the low bits now hold the nearest integer
  const Float16 f = x - (shifted - 12582912.0f);
  Float16 p = f * 0.0001535334803f + 0.001339887498f;
  p = p * f + 0.009618437418f;
  p = p * f + 0.05550332469f;
  p = p * f + 0.2402264791f;
  p = p * f + 0.6931472029f;
  p = p * f + 1.0f;
  Word16 exponent;
  Word16 bits;
  Word16 gone;
  std::memcpy(&exponent, &shifted, sizeof(bits));
  std::memcpy(&bits, &p, sizeof(bits));
  std::memcpy(&gone, &vanishes, sizeof(bits));
  bits = (bits + (exponent << 23)) & ~gone;
  std::memcpy(&x, &bits, sizeof(bits));
}

// To bfloat16, to nearest even.
TRIREME_INLINE void to_bf16(const Float16& from, Word16& to) {
  std::memcpy(&to, &from, sizeof(to));
  to = (to + 0x7fffu + ((to >> 16) & 1u)) >> 16;
}
TRIREME_INLINE void store_bf16(const Float16& from, uint16_t* to) {
  Word16 words;
  to_bf16(from, words);
  const Short16 narrow = __builtin_convertvector(words, Short16);
  std::memcpy(to, &narrow, sizeof(narrow));
}

TRIREME_INLINE float largest(const Float16& x) {
  float result = x[0];
  for (int i = 1; i < kLanes; ++i) result = x[i] > result ? x[i] : result;
  return result;
}
TRIREME_INLINE float total(const Float16& x) {
  float part[kLanes];
  store(x, part);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) part[i] += part[i + width];
  return part[0];
}

TRIREME_INLINE void softmax_body(const SoftmaxTile& tile) {
  for (int64_t r = 0; r < tile.rows; ++r) {
    float* row = tile.scores + r * tile.row_stride;
    if (tile.begin != nullptr) {
      for (int64_t j = 0; j < tile.begin[r]; ++j) row[j] = kMinusInfinity;
      for (int64_t j = tile.end[r]; j < tile.columns; ++j) row[j] = kMinusInfinity;
    }
    Float16 high[4];
    for (auto& part : high) fill(kMinusInfinity, part);
    for (int64_t j = 0; j < tile.columns; j += kColumns)
      for (int lane = 0; lane < 4; ++lane) {
        Float16 x;
        load(row + j + lane * kLanes, x);
        x *= tile.log2_scale;
        high[lane] = x > high[lane] ? x : high[lane];
      }
    high[0] = high[1] > high[0] ? high[1] : high[0];
    high[2] = high[3] > high[2] ? high[3] : high[2];
    high[0] = high[2] > high[0] ? high[2] : high[0];
    const float before = tile.row_max[r], found = largest(high[0]);
    const float now = found > before ? found : before;
    // Until a row has met a key that it sees, its maximum is minus infinity, which must not meet itself
    // below.
    const float reference = now == kMinusInfinity ? 0.0f : now;
    Float16 sum[2];
    fill(0, sum[0]);
    fill(0, sum[1]);
    for (int64_t j = 0; j < tile.columns; j += 2 * kLanes)
      for (int lane = 0; lane < 2; ++lane) {
        Float16 x;
        load(row + j + lane * kLanes, x);
        x = x * tile.log2_scale - reference;
        exp2_in_place(x);
        sum[lane] += x;
        if (tile.bf16_out != nullptr)
          store_bf16(x, tile.bf16_out + r * tile.row_stride + j + lane * kLanes);
        else
          store(x, row + j + lane * kLanes);
      }
    Float16 shrink;
    fill(before - reference, shrink);
    exp2_in_place(shrink);
    tile.rescale[r] = shrink[0];
    tile.row_max[r] = now;
    tile.row_sum[r] = tile.row_sum[r] * shrink[0] + total(sum[0] + sum[1]);
  }
}

// One row of a gradient tile: four vectors of queries.
TRIREME_INLINE void gradient_row(const GradientTile& tile, int64_t r, const Float16* lse2,
                                 const Float16* delta) {
  float* p_row = tile.scores + r * kColumns;
  float* ds_row = tile.gradients + r * kColumns;
  for (int lane = 0; lane < 4; ++lane) {
    Float16 p;
    Float16 ds;
    load(p_row + lane * kLanes, p);
    load(ds_row + lane * kLanes, ds);
    p = p * tile.log2_scale - lse2[lane];
    exp2_in_place(p);
    ds = p * tile.scale * (ds - delta[lane]);
    store(p, p_row + lane * kLanes);
    store(ds, ds_row + lane * kLanes);
  }
  if (tile.begin != nullptr) {
    for (int64_t j = 0; j < tile.begin[r]; ++j) p_row[j] = ds_row[j] = 0;
    for (int64_t j = tile.end[r]; j < kColumns; ++j) p_row[j] = ds_row[j] = 0;
  }
}

TRIREME_INLINE void gradient_body(const GradientTile& tile) {
  Float16 lse2[4];
  Float16 delta[4];
  for (int lane = 0; lane < 4; ++lane) {
    load(tile.lse2 + lane * kLanes, lse2[lane]);
    load(tile.delta + lane * kLanes, delta[lane]);
  }
  if (tile.bf16_scores == nullptr) {
    for (int64_t r = 0; r < tile.rows; ++r) gradient_row(tile, r, lse2, delta);
    return;
  }
  for (int64_t r = 0; r < tile.rows; r += 2) {  // rows are a multiple of 64
    gradient_row(tile, r, lse2, delta);
    gradient_row(tile, r + 1, lse2, delta);
    for (int lane = 0; lane < 4; ++lane) {
      Float16 ds[2];
      for (int64_t i = 0; i < 2; ++i) {
        const int64_t at = (r + i) * kColumns + lane * kLanes;
        Float16 p;
        load(tile.scores + at, p);
        load(tile.gradients + at, ds[i]);
        store_bf16(p, tile.bf16_scores + at);
        store_bf16(ds[i], tile.bf16_gradients + at);
      }
      Word16 even;
      Word16 odd;
      to_bf16(ds[0], even);
      to_bf16(ds[1], odd);
      even |= odd << 16;
      std::memcpy(tile.bf16_pairs + r * kColumns + lane * kLanes * 2, &even, sizeof(even));
    }
  }
}

TRIREME_INLINE void scale_rows_body(float* rows, int64_t count, int64_t columns, int64_t row_stride,
                                    const float* factors) {
  for (int64_t r = 0; r < count; ++r) {
    if (factors[r] == 1.0f) continue;
    for (int64_t j = 0; j < columns; j += kLanes) {
      Float16 x;
      load(rows + r * row_stride + j, x);
      x *= factors[r];
      store(x, rows + r * row_stride + j);
    }
  }
}

// NOLINTBEGIN(bugprone-macro-parentheses): attributes take none
#define TRIREME_TILE_MATH(name, attributes)                                                   \
  namespace name {                                                                            \
  attributes void softmax(const SoftmaxTile& tile) {                                          \
    softmax_body(tile);                                                                       \
  }                                                                                           \
  attributes void gradient(const GradientTile& tile) {                                        \
    gradient_body(tile);                                                                      \
  }                                                                                           \
  attributes void scale_rows(float* rows, int64_t count, int64_t columns, int64_t row_stride, \
                             const float* factors) {                                          \
    scale_rows_body(rows, count, columns, row_stride, factors);                               \
  }                                                                                           \
  constexpr TileMath kMath{#name, softmax, gradient, scale_rows};                             \
  }
// NOLINTEND(bugprone-macro-parentheses)

#if defined(__x86_64__)
TRIREME_TILE_MATH(avx512, __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma"))))
TRIREME_TILE_MATH(avx2, __attribute__((target("avx2,fma"))))
bool has_avx512() {
  return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
         __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
         __builtin_cpu_supports("fma") != 0;
}
bool has_avx2() {
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
}
#endif
TRIREME_TILE_MATH(portable, )

}  // namespace

const TileMath& tile_math() {
#if defined(__x86_64__)
  if (has_avx512()) return avx512::kMath;
  if (has_avx2()) return avx2::kMath;
#endif
  return portable::kMath;
}

const TileMath* tile_math(const char* instructions) {
#if defined(__x86_64__)
  if (std::strcmp(instructions, avx512::kMath.instructions) == 0 && has_avx512()) return &avx512::kMath;
  if (std::strcmp(instructions, avx2::kMath.instructions) == 0 && has_avx2()) return &avx2::kMath;
#endif
  if (std::strcmp(instructions, portable::kMath.instructions) == 0) return &portable::kMath;
  return nullptr;
}

}  // namespace trireme
