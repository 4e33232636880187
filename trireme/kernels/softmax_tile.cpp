// Vectors of 16 floats in the compiler's own notation.
#include "trireme/kernels/softmax_tile.h"

#include "trireme/kernels/vector_math.h"

namespace trireme::TRIREME_SIMD_NAMESPACE {
namespace {

using Float16 = float __attribute__((vector_size(64)));
using Int16 = int32_t __attribute__((vector_size(64)));
using Word16 = uint32_t __attribute__((vector_size(64)));
using Short16 = uint16_t __attribute__((vector_size(32)));

constexpr int64_t kLanes = 16;
constexpr int64_t kColumns = 64;
const float kMinusInfinity = -__builtin_inff();

inline Float16 load(const float* from) {
  Float16 values;
  memcpy(&values, from, sizeof(values));
  return values;
}
inline void store(const Float16& from, float* to) {
  memcpy(to, &from, sizeof(from));
}
inline Float16 fill(float value) {
  return Float16{} + value;
}

// 2^x, zero below the normal numbers; NaN stays NaN. The integer part moves into the exponent bits; the
// rest, in [-1/2, 1/2], goes through a polynomial whose relative error is below 1e-8 before rounding.
inline Float16 exp2_of(Float16 x) {
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
  memcpy(&exponent, &shifted, sizeof(bits));
  memcpy(&bits, &p, sizeof(bits));
  memcpy(&gone, &vanishes, sizeof(bits));
  bits = (bits + (exponent << 23)) & ~gone;
  memcpy(&x, &bits, sizeof(bits));
  return x;
}

inline Word16 to_bf16(const Float16& from) {
  Word16 bits;
  memcpy(&bits, &from, sizeof(bits));
  return bf16_bits(bits);
}
inline void store_bf16(const Float16& from, uint16_t* to) {
  const Word16 words = to_bf16(from);
  const Short16 narrow = __builtin_convertvector(words, Short16);
  memcpy(to, &narrow, sizeof(narrow));
}

inline float largest(const Float16& x) {
  float result = x[0];
  for (int i = 1; i < kLanes; ++i) result = x[i] > result ? x[i] : result;
  return result;
}
inline float total(const Float16& x) {
  float part[kLanes];
  store(x, part);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) part[i] += part[i + width];
  return part[0];
}

inline void softmax(const SoftmaxTile& tile) {
  for (int64_t r = 0; r < tile.rows; ++r) {
    float* row = tile.scores + r * tile.row_stride;
    if (tile.begin != nullptr) {
      for (int64_t j = 0; j < tile.begin[r]; ++j) row[j] = kMinusInfinity;
      for (int64_t j = tile.end[r]; j < tile.columns; ++j) row[j] = kMinusInfinity;
    }
    Float16 high[4];
    for (Float16& lane : high) lane = fill(kMinusInfinity);
    for (int64_t j = 0; j < tile.columns; j += kColumns)
      for (int lane = 0; lane < 4; ++lane) {
        const Float16 x = load(row + j + lane * kLanes) * tile.log2_scale;
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
    Float16 sum[2] = {};
    for (int64_t j = 0; j < tile.columns; j += 2 * kLanes)
      for (int lane = 0; lane < 2; ++lane) {
        const Float16 x = exp2_of(load(row + j + lane * kLanes) * tile.log2_scale - reference);
        sum[lane] += x;
        if (tile.bf16_out != nullptr)
          store_bf16(x, tile.bf16_out + r * tile.row_stride + j + lane * kLanes);
        else
          store(x, row + j + lane * kLanes);
      }
    const float shrink = exp2_of(fill(before - reference))[0];
    tile.rescale[r] = shrink;
    tile.row_max[r] = now;
    tile.row_sum[r] = tile.row_sum[r] * shrink + total(sum[0] + sum[1]);
  }
}

// One row of a gradient tile: four vectors of queries.
inline void gradient_row(const GradientTile& tile, int64_t r, const Float16* lse2, const Float16* delta) {
  float* p_row = tile.scores + r * kColumns;
  float* ds_row = tile.gradients + r * kColumns;
  for (int lane = 0; lane < 4; ++lane) {
    const Float16 s = load(p_row + lane * kLanes), dp = load(ds_row + lane * kLanes);
    const Float16 p = exp2_of(s * tile.log2_scale - lse2[lane]);
    store(p, p_row + lane * kLanes);
    store(p * tile.scale * (dp - delta[lane]), ds_row + lane * kLanes);
  }
  if (tile.begin != nullptr) {
    for (int64_t j = 0; j < tile.begin[r]; ++j) p_row[j] = ds_row[j] = 0;
    for (int64_t j = tile.end[r]; j < kColumns; ++j) p_row[j] = ds_row[j] = 0;
  }
}

inline void gradient(const GradientTile& tile) {
  Float16 lse2[4];
  Float16 delta[4];
  for (int lane = 0; lane < 4; ++lane) {
    lse2[lane] = load(tile.lse2 + lane * kLanes);
    delta[lane] = load(tile.delta + lane * kLanes);
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
        const int64_t offset = (r + i) * kColumns + lane * kLanes;
        ds[i] = load(tile.gradients + offset);
        store_bf16(load(tile.scores + offset), tile.bf16_scores + offset);
        store_bf16(ds[i], tile.bf16_gradients + offset);
      }
      const Word16 pairs = to_bf16(ds[0]) | to_bf16(ds[1]) << 16;
      memcpy(tile.bf16_pairs + r * kColumns + lane * kLanes * 2, &pairs, sizeof(pairs));
    }
  }
}

inline void scale_rows(float* rows, int64_t count, int64_t columns, int64_t row_stride,
                       const float* factors) {
  for (int64_t r = 0; r < count; ++r) {
    if (factors[r] == 1.0f) continue;
    for (int64_t j = 0; j < columns; j += kLanes)
      store(load(rows + r * row_stride + j) * factors[r], rows + r * row_stride + j);
  }
}

}  // namespace

constexpr TileMath kTileMath {
#if defined(__AVX512F__)
  "avx512",
#elif defined(__AVX2__)
  "avx2",
#else
  "portable",
#endif
      softmax, gradient, scale_rows
};

}  // namespace trireme::TRIREME_SIMD_NAMESPACE
