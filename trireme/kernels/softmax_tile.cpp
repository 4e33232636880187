// Vectors in the compiler's own notation, as wide as the level's registers: of wider ones GCC takes
// comparisons and selections apart, value by value.
#include "trireme/kernels/softmax_tile.h"

#include "trireme/kernels/vector_math.h"

namespace trireme::TRIREME_SIMD_NAMESPACE {
namespace {

#if defined(__AVX512F__)
constexpr int64_t kLanes = 16;
#elif defined(__AVX2__)
constexpr int64_t kLanes = 8;
#else
constexpr int64_t kLanes = 4;
#endif
using Floats = float __attribute__((vector_size(4 * kLanes)));
using Ints = int32_t __attribute__((vector_size(4 * kLanes)));
using Words = uint32_t __attribute__((vector_size(4 * kLanes)));
using Shorts = uint16_t __attribute__((vector_size(2 * kLanes)));

constexpr int64_t kColumns = 64;
const float kMinusInfinity = -__builtin_inff();

inline Floats load(const float* from) {
  Floats values;
  memcpy(&values, from, sizeof(values));
  return values;
}
inline void store(const Floats& from, float* to) {
  memcpy(to, &from, sizeof(from));
}
inline Floats fill(float value) {
  return Floats{} + value;
}

// 2^x, zero below the normal numbers; NaN stays NaN. The integer part moves into the exponent bits; the
// rest, in [-1/2, 1/2], goes through a polynomial whose relative error is below 1e-8 before rounding.
inline Floats exp2_of(Floats x) {
  const Ints vanishes = x < -126.0f;
  Floats shifted = x + 12582912.0f;  // 1.5 * 2^23: the low bits now hold the nearest integer
  const Floats f = x - (shifted - 12582912.0f);
  Floats p = f * 0.0001535334803f + 0.001339887498f;
  p = p * f + 0.009618437418f;
  p = p * f + 0.05550332469f;
  p = p * f + 0.2402264791f;
  p = p * f + 0.6931472029f;
  p = p * f + 1.0f;
  Words exponent;
  Words bits;
  Words gone;
  memcpy(&exponent, &shifted, sizeof(bits));
  memcpy(&bits, &p, sizeof(bits));
  memcpy(&gone, &vanishes, sizeof(bits));
  bits = (bits + (exponent << 23)) & ~gone;
  memcpy(&x, &bits, sizeof(bits));
  return x;
}

inline Words to_bf16(const Floats& from) {
  Words bits;
  memcpy(&bits, &from, sizeof(bits));
  return bf16_bits(bits);
}
inline void store_bf16(const Floats& from, uint16_t* to) {
  const Words words = to_bf16(from);
  const Shorts narrow = __builtin_convertvector(words, Shorts);
  memcpy(to, &narrow, sizeof(narrow));
}

inline float largest(const Floats& x) {
  float result = x[0];
  for (int i = 1; i < kLanes; ++i) result = x[i] > result ? x[i] : result;
  return result;
}
inline float total(const Floats& x) {
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
    Floats high[4];
    for (Floats& lane : high) lane = fill(kMinusInfinity);
    for (int64_t j = 0; j < tile.columns; j += 4 * kLanes)
      for (int lane = 0; lane < 4; ++lane) {
        const Floats x = load(row + j + lane * kLanes) * tile.log2_scale;
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
    Floats sum[2] = {};
    for (int64_t j = 0; j < tile.columns; j += 2 * kLanes)
      for (int lane = 0; lane < 2; ++lane) {
        const Floats x = exp2_of(load(row + j + lane * kLanes) * tile.log2_scale - reference);
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

// One row of a gradient tile.
inline void gradient_row(const GradientTile& tile, int64_t r) {
  float* p_row = tile.scores + r * kColumns;
  float* ds_row = tile.gradients + r * kColumns;
  for (int64_t j = 0; j < kColumns; j += kLanes) {
    const Floats s = load(p_row + j), dp = load(ds_row + j);
    const Floats p = exp2_of(s * tile.log2_scale - load(tile.lse2 + j));
    store(p, p_row + j);
    store(p * tile.scale * (dp - load(tile.delta + j)), ds_row + j);
  }
  if (tile.begin != nullptr) {
    for (int64_t j = 0; j < tile.begin[r]; ++j) p_row[j] = ds_row[j] = 0;
    for (int64_t j = tile.end[r]; j < kColumns; ++j) p_row[j] = ds_row[j] = 0;
  }
}

inline void gradient(const GradientTile& tile) {
  if (tile.bf16_scores == nullptr) {
    for (int64_t r = 0; r < tile.rows; ++r) gradient_row(tile, r);
    return;
  }
  for (int64_t r = 0; r < tile.rows; r += 2) {  // rows are a multiple of 64
    gradient_row(tile, r);
    gradient_row(tile, r + 1);
    for (int64_t j = 0; j < kColumns; j += kLanes) {
      Floats ds[2];
      for (int64_t i = 0; i < 2; ++i) {
        const int64_t offset = (r + i) * kColumns + j;
        ds[i] = load(tile.gradients + offset);
        store_bf16(load(tile.scores + offset), tile.bf16_scores + offset);
        store_bf16(ds[i], tile.bf16_gradients + offset);
      }
      const Words pairs = to_bf16(ds[0]) | to_bf16(ds[1]) << 16;
      memcpy(tile.bf16_pairs + r * kColumns + j * 2, &pairs, sizeof(pairs));
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
