// Row kernels: plain loops that the compiler vectorises. Compiled once for each x86-64 level, in its own
// namespace.
#include "trireme/kernels/token_kernels.h"

#include "trireme/kernels/vector_math.h"

namespace trireme::TRIREME_SIMD_NAMESPACE {
namespace {

inline float load(const float* p) {
  return *p;
}
inline float load(const Bf16* p) {
  return bf16_to_float(p->bits);
}
inline float load(const Fp16* p) {
  return fp16_to_float(p->bits);
}
inline void store(float* p, float value) {
  *p = value;
}
inline void store(Bf16* p, float value) {
  p->bits = float_to_bf16(value);
}
inline void store(Fp16* p, float value) {
  p->bits = float_to_fp16(value);
}

template <typename X>
inline float inverse_rms(const X* x, int64_t n, float eps) {
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += load(x + i) * load(x + i);
  return 1.0f / __builtin_sqrtf(sum / static_cast<float>(n) + eps);
}

template <typename X, typename Y>
void rms_norm(const X* __restrict x, const float* __restrict weight, float eps, Y* __restrict y, int64_t M) {
  const float r = inverse_rms(x, M, eps);
  for (int64_t i = 0; i < M; ++i) store(y + i, load(x + i) * r * weight[i]);
}

template <typename Dy, typename X, typename Dx>
void rms_norm_backward(const Dy* __restrict dy, const X* __restrict x, const float* __restrict weight,
                       float eps, Dx* __restrict dx, float* __restrict dweight, int64_t M) {
  const float r = inverse_rms(x, M, eps);
  float dot = 0;
  for (int64_t i = 0; i < M; ++i) dot += load(dy + i) * weight[i] * load(x + i);
  const float mean = dot * r * r / static_cast<float>(M);  // mean(g * hat) * r
  for (int64_t i = 0; i < M; ++i) {
    const float d = load(dy + i), value = load(x + i);
    dweight[i] += d * value * r;
    store(dx + i, load(dx + i) + r * (d * weight[i] - value * mean));
  }
}

// Lanes, because a compiler that minds NaN does not reorder a maximum.
template <typename X>
inline float largest(const X* x, int64_t n) {
  constexpr int64_t kLanes = 64;
  float lanes[kLanes];
  for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] = load(x);
  const int64_t whole = n / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes)
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const float value = load(x + i + lane);
      lanes[lane] = value > lanes[lane] ? value : lanes[lane];
    }
  for (int64_t i = whole; i < n; ++i) {
    const float value = load(x + i);
    lanes[0] = value > lanes[0] ? value : lanes[0];
  }
  float most = lanes[0];
  for (int64_t lane = 1; lane < kLanes; ++lane) most = lanes[lane] > most ? lanes[lane] : most;
  return most;
}

// Heads that turn whole have code of their own, without the loops over what stays.
enum class Turning { all, some };

// `from` and `to` may be the same.
template <Turning turning, typename X, typename Y>
void rotate_pairs(const X* from, const RotaryRow& row, Y* to) {
  const bool in_place = static_cast<const void*>(from) == static_cast<const void*>(to);
  const int64_t D = row.head_dim, pairs = turning == Turning::all ? D / 2 : row.turning_pairs;
  const int64_t stays = turning == Turning::all ? D : 2 * pairs;  // from here on
  for (int64_t head = 0; head < row.rotated_heads; ++head) {
    const X* a = from + head * D;
    Y* out = to + head * D;
    const float* norm = head < row.query_heads ? row.q_norm : row.k_norm;
    if (norm != nullptr) {
      const float r = inverse_rms(a, D, row.eps);
      for (int64_t i = 0; i < pairs; ++i) {
        const float u = load(a + i) * r * norm[i], v = load(a + pairs + i) * r * norm[pairs + i];
        store(out + i, u * row.cos[i] - v * row.sin[i]);
        store(out + pairs + i, v * row.cos[i] + u * row.sin[i]);
      }
      for (int64_t i = stays; i < D; ++i) store(out + i, load(a + i) * r * norm[i]);
    } else {
      for (int64_t i = 0; i < pairs; ++i) {
        const float u = load(a + i), v = load(a + pairs + i);
        store(out + i, u * row.cos[i] - v * row.sin[i]);
        store(out + pairs + i, v * row.cos[i] + u * row.sin[i]);
      }
      for (int64_t i = in_place ? D : stays; i < D; ++i) store(out + i, load(a + i));
    }
  }
  if (in_place) return;
  for (int64_t i = row.rotated_heads * D; i < row.heads * D; ++i) store(to + i, load(from + i));
}

template <Turning turning, typename X, typename Y>
void rotate_pairs_backward(const X* from, const RotaryRow& row, const Y* before, Y* to, float* dq_norm,
                           float* dk_norm) {
  const bool in_place = static_cast<const void*>(from) == static_cast<const void*>(to);
  const int64_t D = row.head_dim, pairs = turning == Turning::all ? D / 2 : row.turning_pairs;
  const int64_t stays = turning == Turning::all ? D : 2 * pairs;  // from here on
  for (int64_t head = 0; head < row.rotated_heads; ++head) {
    const X* a = from + head * D;
    Y* out = to + head * D;
    const bool is_query = head < row.query_heads;
    const float* norm = is_query ? row.q_norm : row.k_norm;
    if (norm == nullptr) {
      for (int64_t i = 0; i < pairs; ++i) {
        const float u = load(a + i), v = load(a + pairs + i);
        store(out + i, u * row.cos[i] + v * row.sin[i]);
        store(out + pairs + i, v * row.cos[i] - u * row.sin[i]);
      }
      for (int64_t i = in_place ? D : stays; i < D; ++i) store(out + i, load(a + i));
      continue;
    }
    const Y* x = before + head * D;
    float* dnorm = is_query ? dq_norm : dk_norm;
    const float r = inverse_rms(x, D, row.eps);
    float dot = 0;
    for (int64_t i = 0; i < pairs; ++i) {
      const float u = load(a + i), v = load(a + pairs + i);
      const float du = u * row.cos[i] + v * row.sin[i], dv = v * row.cos[i] - u * row.sin[i];
      dnorm[i] += du * load(x + i) * r;
      dnorm[pairs + i] += dv * load(x + pairs + i) * r;
      dot += du * norm[i] * load(x + i) + dv * norm[pairs + i] * load(x + pairs + i);
    }
    for (int64_t i = stays; i < D; ++i) {
      const float d = load(a + i), value = load(x + i);
      dnorm[i] += d * value * r;
      dot += d * norm[i] * value;
    }
    const float mean = dot * r * r / static_cast<float>(D);
    for (int64_t i = 0; i < pairs; ++i) {
      const float u = load(a + i), v = load(a + pairs + i);
      const float du = u * row.cos[i] + v * row.sin[i], dv = v * row.cos[i] - u * row.sin[i];
      const float first = r * (du * norm[i] - load(x + i) * mean);
      const float second = r * (dv * norm[pairs + i] - load(x + pairs + i) * mean);
      store(out + i, first);
      store(out + pairs + i, second);
    }
    for (int64_t i = stays; i < D; ++i) store(out + i, r * (load(a + i) * norm[i] - load(x + i) * mean));
  }
  if (in_place) return;
  for (int64_t i = row.rotated_heads * D; i < row.heads * D; ++i) store(to + i, load(from + i));
}

template <typename X, typename Y>
void rotate(const X* from, const RotaryRow& row, Y* to) {
  if (2 * row.turning_pairs == row.head_dim)
    rotate_pairs<Turning::all>(from, row, to);
  else
    rotate_pairs<Turning::some>(from, row, to);
}

template <typename X, typename Y>
void rotate_backward(const X* from, const RotaryRow& row, const Y* before, Y* to, float* dq_norm,
                     float* dk_norm) {
  if (2 * row.turning_pairs == row.head_dim)
    rotate_pairs_backward<Turning::all>(from, row, before, to, dq_norm, dk_norm);
  else
    rotate_pairs_backward<Turning::some>(from, row, before, to, dq_norm, dk_norm);
}

// kernels/glu_gate.h: a(x) and a'(x).
struct Silu {
  static inline float argument(float x) { return x; }
  static inline float slope(float) { return 1.0f; }
};
struct GeluTanh {
  static inline float argument(float x) { return x * (kGeluLinear + kGeluCubic * x * x); }
  static inline float slope(float x) { return kGeluLinear + 3.0f * kGeluCubic * x * x; }
};

template <typename Gate, typename X>
void glu(const X* __restrict gate_up, X* __restrict act, int64_t I) {
  for (int64_t i = 0; i < I; ++i) {
    const float gate = load(gate_up + i);
    store(act + i, gate / (1.0f + vector_exp(-Gate::argument(gate))) * load(gate_up + I + i));
  }
}

template <typename Gate, typename X>
void glu_backward(const X* __restrict dact, X* __restrict gate_up, X* __restrict act, int64_t I) {
  for (int64_t i = 0; i < I; ++i) {
    const float gate = load(gate_up + i), up = load(gate_up + I + i), d = load(dact + i);
    const float sigmoid = 1.0f / (1.0f + vector_exp(-Gate::argument(gate)));
    const float gated = gate * sigmoid;
    store(act + i, gated * up);
    store(gate_up + i, d * up * sigmoid * (1.0f + gate * (1.0f - sigmoid) * Gate::slope(gate)));
    store(gate_up + I + i, d * gated);
  }
}

// Of logits c = cap tanh(x / cap): dc/dx.
struct Uncapped {
  static constexpr bool kNeedsLogit = false;
  static inline float slope(float) { return 1.0f; }
};
struct Capped {
  static constexpr bool kNeedsLogit = true;
  float cap, per_square;
  inline float slope(float c) const { return (cap - c) * (cap + c) * per_square; }
};

template <typename X, typename Cap>
float cross_entropy_of(X* __restrict logits, int64_t target, bool gradient, float scale, Cap cap, int64_t V) {
  if (target < 0) {
    if (gradient)
      for (int64_t i = 0; i < V; ++i) store(logits + i, 0.0f);
    return 0;
  }
  if (target >= V) return __builtin_nanf("");
  const float most = largest(logits, V);
  const float at_target = load(logits + target);
  // Partial sums over pieces keep the error of a long row near that of one piece. An fp32 row keeps its
  // exponentials for the gradient; in 16 bits they would be rounded twice, and a cap's slope needs the logit,
  // so they are made again.
  constexpr bool kKeeps = sizeof(X) == sizeof(float) && !Cap::kNeedsLogit;
  constexpr int64_t kPiece = 1024;
  double total = 0;
  for (int64_t begin = 0; begin < V; begin += kPiece) {
    const int64_t end = begin + kPiece < V ? begin + kPiece : V;
    float sum = 0;
    if (kKeeps && gradient) {
      for (int64_t i = begin; i < end; ++i) {
        const float value = vector_exp(load(logits + i) - most);
        store(logits + i, value);
        sum += value;
      }
    } else {
      for (int64_t i = begin; i < end; ++i) sum += vector_exp(load(logits + i) - most);
    }
    total += static_cast<double>(sum);
  }
  if (gradient) {
    const float factor = scale / static_cast<float>(total);
    if (kKeeps) {
      for (int64_t i = 0; i < V; ++i) store(logits + i, load(logits + i) * factor);
    } else {
      for (int64_t i = 0; i < V; ++i) {
        const float value = load(logits + i);
        store(logits + i, vector_exp(value - most) * factor * cap.slope(value));
      }
    }
    // Not p - 1 after rounding to the row's dtype: computed from the exact value.
    store(logits + target, (vector_exp(at_target - most) * factor - scale) * cap.slope(at_target));
  }
  return static_cast<float>(__builtin_log(total)) + most - at_target;
}

template <typename X>
float cross_entropy(X* logits, int64_t target, bool gradient, float scale, float cap, int64_t V) {
  if (cap > 0) return cross_entropy_of(logits, target, gradient, scale, Capped{cap, 1.0f / (cap * cap)}, V);
  return cross_entropy_of(logits, target, gradient, scale, Uncapped{}, V);
}

template <typename X, typename Y>
constexpr RowKernels<X, Y> row_kernels() {
  return {&rms_norm<X, Y>, &rotate<X, Y>, &rotate_backward<X, Y>};
}
template <typename Gate, typename X>
constexpr GluKernels<X> glu_kernels() {
  return {&glu<Gate, X>, &glu_backward<Gate, X>};
}
template <typename X>
constexpr TileKernels<X> tile_kernels() {
  return {glu_kernels<Silu, X>(), glu_kernels<GeluTanh, X>(), &cross_entropy<X>};
}
template <typename Dy, typename X, typename Dx>
constexpr NormBackwardKernel<Dy, X, Dx> norm_kernel() {
  return {&rms_norm_backward<Dy, X, Dx>};
}

template <typename S>
constexpr KernelsWith<S> kernels_with() {
  return {
      row_kernels<float, float>(),
      row_kernels<float, S>(),
      row_kernels<S, float>(),
      row_kernels<S, S>(),
      norm_kernel<float, float, float>(),
      norm_kernel<float, float, S>(),
      norm_kernel<float, S, float>(),
      norm_kernel<float, S, S>(),
      norm_kernel<S, float, float>(),
      norm_kernel<S, float, S>(),
      norm_kernel<S, S, float>(),
      norm_kernel<S, S, S>(),
      tile_kernels<float>(),
      tile_kernels<S>(),
  };
}

}  // namespace

constexpr TokenKernels kTokenKernels = {kernels_with<Bf16>(), kernels_with<Fp16>()};

}  // namespace trireme::TRIREME_SIMD_NAMESPACE
