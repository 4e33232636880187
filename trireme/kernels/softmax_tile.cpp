// Vectors in the compiler's own notation, as wide as the level's registers: of wider ones GCC takes
// comparisons and selections apart, value by value.
#include "trireme/kernels/softmax_tile.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

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
constexpr float kLog2OfE = 1.44269504088896341f;
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

// Of results that are kept as fp32, or rounded to bf16.
enum class Kept { fp32, bf16 };

// 2^f in fp32, for f from -1/2 to 1/2.
inline Floats power_of_fraction(Floats f) {
  Floats p = f * 0.0001535334803f + 0.001339887498f;
  p = p * f + 0.009618437418f;
  p = p * f + 0.05550332469f;
  p = p * f + 0.2402264791f;
  p = p * f + 0.6931472029f;
  return p * f + 1.0f;
}

// 2^x, zero below the normal numbers; NaN stays NaN. The whole part moves into the exponent; the rest goes
// through a polynomial whose relative error is below 2e-8 before rounding, and below 3e-6 of what is rounded
// to bf16. 2^0 is 1 where it is kept as fp32.
#if defined(__AVX512F__)
template <Kept kept>
inline Floats exp2_of(Floats x) {
  const auto powers = reinterpret_cast<__m512>(x);
  auto whole = powers;  // of which vscalefps takes the integer below
  Floats p;
  if constexpr (kept == Kept::bf16) {
    const auto f = reinterpret_cast<Floats>(
        _mm512_reduce_ps(powers, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC));  // x - floor(x)
    p = f * 0.01353416745f + 0.05201146151f;
    p = p * f + 0.2414427564f;
    p = p * f + 0.6930038346f;
    p = p * f + 1.000002593f;
  } else {
    // Between -1/2 and 1/2 the powers' errors are a quarter as large on average as between 0 and 1.
    whole = _mm512_roundscale_ps(powers, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const Floats f = x - reinterpret_cast<Floats>(whole);
    p = power_of_fraction(f);
  }
  const __mmask16 there = _mm512_cmp_ps_mask(powers, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
  return reinterpret_cast<Floats>(_mm512_maskz_scalef_ps(there, reinterpret_cast<__m512>(p), whole));
}
#else
template <Kept kept>
inline Floats exp2_of(Floats x) {
  const Floats shifted = x + 12582912.0f;  // 1.5 * 2^23: the low bits now hold the nearest integer
  const Floats f = x - (shifted - 12582912.0f);
  Floats p;
  if constexpr (kept == Kept::bf16) {
    p = f * 0.009570101985f + 0.05591786135f;
    p = p * f + 0.2402474483f;
    p = p * f + 0.6931218146f;
    p = p * f + 0.9999992614f;
  } else {
    p = power_of_fraction(f);
  }
  const Ints vanishes = x < -126.0f;
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
#endif

// tanh(x), right to 3e-7 of it: by exp(2 x), and where that would cancel by its series.
inline Floats tanh_of(Floats x) {
  constexpr float kLargest = 10, kSmall = 0.25F;  // beyond the first it is 1 in fp32
  x = x > kLargest ? fill(kLargest) : x;
  x = x < -kLargest ? fill(-kLargest) : x;
  const Floats square = x * x;
  const Floats series = x * (((square * (-17.0f / 315) + 2.0f / 15) * square - 1.0f / 3) * square + 1.0f);
  const Floats whole = 1.0f - 2.0f / (exp2_of<Kept::fp32>(x * (2 * kLog2OfE)) + 1.0f);
  return square < kSmall * kSmall ? series : whole;
}

// GCC would take a narrowing of words apart, or permute those of two registers.
#if defined(__AVX512BF16__)
inline Shorts to_bf16(const Floats& from) {
  return reinterpret_cast<Shorts>(_mm512_cvtneps_pbh(from));
}
#else
inline Shorts to_bf16(const Floats& from) {
  Words bits;
  memcpy(&bits, &from, sizeof(bits));
#if defined(__AVX512F__)
  return reinterpret_cast<Shorts>(_mm512_cvtepi32_epi16(reinterpret_cast<__m512i>(bf16_bits(bits))));
#else
  return __builtin_convertvector(bf16_bits(bits), Shorts);
#endif
}
#endif

inline void store_as(const Floats& from, float* to) {
  store(from, to);
}
inline void store_as(const Floats& from, uint16_t* to) {
  const Shorts narrow = to_bf16(from);
  memcpy(to, &narrow, sizeof(narrow));
}

inline float largest(const Floats& x) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps(x);
#else
  float result = x[0];
  for (int i = 1; i < kLanes; ++i) result = x[i] > result ? x[i] : result;
  return result;
#endif
}
inline float total(const Floats& x) {
  float part[kLanes];
  store(x, part);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) part[i] += part[i + width];
  return part[0];
}

// scale s -> cap tanh(scale s / cap)
inline void cap_scores(const SoftmaxTile& tile, int64_t r) {
  float* row = tile.scores + r * tile.row_stride;
  const float inner = tile.rule.scale / tile.rule.cap;
  for (int64_t j = 0; j < tile.columns; j += kLanes)
    store(tanh_of(load(row + j) * inner) * tile.rule.cap, row + j);
}

// Of a row's scores that its query sees; the others become minus infinity.
inline float largest_score(const SoftmaxTile& tile, int64_t r) {
  float* row = tile.scores + r * tile.row_stride;
  if (tile.begin != nullptr) {
    for (int64_t j = 0; j < tile.begin[r]; ++j) row[j] = kMinusInfinity;
    for (int64_t j = tile.end[r]; j < tile.columns; ++j) row[j] = kMinusInfinity;
  }
  Floats high[4];
  for (Floats& lane : high) lane = fill(kMinusInfinity);
  for (int64_t j = 0; j < tile.columns; j += 4 * kLanes)
    for (int lane = 0; lane < 4; ++lane) {
      const Floats x = load(row + j + lane * kLanes);
      high[lane] = x > high[lane] ? x : high[lane];
    }
  high[0] = high[1] > high[0] ? high[1] : high[0];
  high[2] = high[3] > high[2] ? high[3] : high[2];
  return largest(high[2] > high[0] ? high[2] : high[0]);
}

// exp2(log2_scale row - reference) -> out, which may be the row; returns the sum.
template <Kept kept, typename Out>
inline float exponentials(const float* row, int64_t columns, float log2_scale, float reference, Out* out) {
  Floats sum[2] = {};
  for (int64_t j = 0; j < columns; j += 2 * kLanes)
    for (int lane = 0; lane < 2; ++lane) {
      const int64_t at = j + lane * kLanes;
      const Floats x = exp2_of<kept>(load(row + at) * log2_scale - reference);
      sum[lane] += x;
      store_as(x, out + at);
    }
  return total(sum[0] + sum[1]);
}

inline void softmax(const SoftmaxTile& tile) {
  const bool capped = tile.rule.cap > 0;
  const float log2_scale = kLog2OfE * (capped ? 1.0f : tile.rule.scale);
  for (int64_t r = 0; r < tile.rows; ++r) {
    if (capped) cap_scores(tile, r);
    const float before = tile.row_max[r], found = largest_score(tile, r) * log2_scale;
    const float now = found > before ? found : before;
    // Until a row has met a key that it sees, its maximum is minus infinity, which must not meet itself
    // below.
    const float reference = now == kMinusInfinity ? 0.0f : now;
    float* row = tile.scores + r * tile.row_stride;
    const float sum = tile.bf16_out == nullptr
                          ? exponentials<Kept::fp32>(row, tile.columns, log2_scale, reference, row)
                          : exponentials<Kept::bf16>(row, tile.columns, log2_scale, reference,
                                                     tile.bf16_out + r * tile.row_stride);
    const float shrink = exp2_of<Kept::fp32>(fill(before - reference))[0];
    tile.rescale[r] = shrink;
    tile.row_max[r] = now;
    tile.row_sum[r] = tile.row_sum[r] * shrink + sum;
  }
}

// A register of a row.
struct GradientLanes {
  Floats p, ds;
};
template <Kept kept, bool capped>
inline GradientLanes gradient_lanes(const GradientTile& tile, int64_t r, int64_t j) {
  const auto [scale, cap] = tile.rule;
  const Floats s = load(tile.scores + r * kColumns + j), dp = load(tile.gradients + r * kColumns + j);
  if constexpr (capped) {
    const Floats t = tanh_of(s * (scale / cap));
    const Floats p = exp2_of<kept>(t * (cap * kLog2OfE) - load(tile.lse2 + j));
    return {p, p * scale * (dp - load(tile.delta + j)) * (1.0f - t * t)};
  } else {
    const Floats p = exp2_of<kept>(s * (scale * kLog2OfE) - load(tile.lse2 + j));
    return {p, p * scale * (dp - load(tile.delta + j))};
  }
}

// Zeros the queries that do not see the key of row r, `stride` elements apart.
template <typename Out>
inline void clear_unseen(const GradientTile& tile, int64_t r, Out* row, int64_t stride = 1) {
  for (int64_t j = 0; j < tile.begin[r]; ++j) row[j * stride] = 0;
  for (int64_t j = tile.end[r]; j < kColumns; ++j) row[j * stride] = 0;
}

template <bool capped>
inline void gradient_in_fp32(GradientTile tile) {
  for (int64_t r = 0; r < tile.rows; ++r) {
    for (int64_t j = 0; j < kColumns; j += kLanes) {
      const auto [p, ds] = gradient_lanes<Kept::fp32, capped>(tile, r, j);
      store(p, tile.scores + r * kColumns + j);
      store(ds, tile.gradients + r * kColumns + j);
    }
    if (tile.begin == nullptr) continue;
    clear_unseen(tile, r, tile.scores + r * kColumns);
    clear_unseen(tile, r, tile.gradients + r * kColumns);
  }
}

template <bool capped>
inline void gradient_in_bf16(GradientTile tile) {
  for (int64_t r = 0; r < tile.rows; r += 2) {  // rows are a multiple of 64
    uint16_t* pairs = tile.bf16_pairs + r * kColumns;
    for (int64_t j = 0; j < kColumns; j += kLanes) {
      Words words[2];
      for (int64_t i = 0; i < 2; ++i) {
        const auto [p, ds] = gradient_lanes<Kept::bf16, capped>(tile, r + i, j);
        const Shorts narrow = to_bf16(ds);
        store_as(p, tile.bf16_scores + (r + i) * kColumns + j);
        memcpy(tile.bf16_gradients + (r + i) * kColumns + j, &narrow, sizeof(narrow));
        words[i] = __builtin_convertvector(narrow, Words);
      }
      const Words pair = words[0] | words[1] << 16;
      memcpy(pairs + j * 2, &pair, sizeof(pair));
    }
    if (tile.begin == nullptr) continue;
    for (int64_t i = 0; i < 2; ++i) {
      clear_unseen(tile, r + i, tile.bf16_scores + (r + i) * kColumns);
      clear_unseen(tile, r + i, tile.bf16_gradients + (r + i) * kColumns);
      clear_unseen(tile, r + i, pairs + i, 2);
    }
  }
}

inline void gradient(const GradientTile& tile) {
  if (tile.bf16_scores == nullptr)
    tile.rule.cap > 0 ? gradient_in_fp32<true>(tile) : gradient_in_fp32<false>(tile);
  else
    tile.rule.cap > 0 ? gradient_in_bf16<true>(tile) : gradient_in_bf16<false>(tile);
}

inline void scale_rows(float* rows, int64_t count, int64_t columns, int64_t row_stride,
                       const float* factors) {
  for (int64_t r = 0; r < count; ++r) {
    if (factors[r] == 1.0f) continue;
    for (int64_t j = 0; j < columns; j += kLanes)
      store(load(rows + r * row_stride + j) * factors[r], rows + r * row_stride + j);
  }
}

inline void scale_to_bf16(const float* from, float factor, int64_t count, uint16_t* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = float_to_bf16(from[i] * factor);
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
      softmax, gradient, scale_rows, scale_to_bf16
};

}  // namespace trireme::TRIREME_SIMD_NAMESPACE
