#include "trireme/model/rotary.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "trireme/base/error.h"

// Inverse frequencies are computed in fp32, in transformers' order of operations: a position of a million
// multiplies the last bit of a frequency until it shows in the angle, so a more exact formula would be
// another model.
namespace trireme {
namespace {

// 2i / D for i in [0, D / 2), fp32 [D / 2].
at::Tensor exponents_of(int64_t head_dim) {
  return at::arange(0, head_dim, 2, at::kLong).to(at::kFloat).div(static_cast<double>(head_dim));
}

at::Tensor plain(int64_t head_dim, double theta) {
  return at::reciprocal(at::pow(theta, exponents_of(head_dim)));
}

// The base grows with the length of the sequence, from its first token on.
at::Tensor dynamic_ntk(const RopeConfig& rope, int64_t head_dim, int64_t plain_tokens,
                       int64_t sequence_tokens) {
  if (sequence_tokens <= plain_tokens) return plain(head_dim, rope.theta);
  const double dim = static_cast<double>(head_dim);
  at::Tensor stretch = at::scalar_tensor(sequence_tokens, at::kLong).mul(rope.factor).div(plain_tokens);
  stretch = stretch.sub(rope.factor - 1).pow(dim / (dim - 2));
  const at::Tensor base = stretch.mul(rope.theta);
  return at::reciprocal(at::pow(base, exponents_of(head_dim)));
}

// Number of the pair that turns `rotations` times within the original length (arXiv 2309.00071, section 3.2).
double correction_dim(double rotations, double dim, double theta, double original_tokens) {
  return dim * std::log(original_tokens / (rotations * 2 * std::numbers::pi)) / (2 * std::log(theta));
}

at::Tensor yarn(int64_t head_dim, const RopeConfig& rope) {
  const auto dim = static_cast<double>(head_dim);
  const auto original = static_cast<double>(rope.original_max_position_embeddings);
  double low = correction_dim(rope.beta_fast, dim, rope.theta, original);
  double high = correction_dim(rope.beta_slow, dim, rope.theta, original);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;  // a ramp of width zero

  const at::Tensor wavelengths = at::pow(rope.theta, exponents_of(head_dim));  // over 2 pi
  const at::Tensor extrapolated = at::reciprocal(wavelengths);
  const at::Tensor interpolated = at::reciprocal(wavelengths.mul(rope.factor));
  const at::Tensor ramp = at::arange(head_dim / 2, at::kFloat).sub(low).div(high - low).clamp(0, 1);
  const at::Tensor keep = at::rsub(ramp, 1);
  return interpolated.mul(at::rsub(keep, 1)).add(extrapolated.mul(keep));
}

double yarn_attention_scaling(const RopeConfig& rope) {
  if (rope.attention_factor) return *rope.attention_factor;
  const auto mscale = [&](double scale) {
    return rope.factor <= 1 ? 1.0 : 0.1 * scale * std::log(rope.factor) + 1.0;
  };
  const double numerator = rope.mscale.value_or(0), denominator = rope.mscale_all_dim.value_or(0);
  return numerator != 0 && denominator != 0 ? mscale(numerator) / mscale(denominator) : mscale(1);
}

// Long wavelengths are stretched by `factor`, short ones kept, those between blended.
at::Tensor llama3(int64_t head_dim, const RopeConfig& rope) {
  const auto original = static_cast<double>(rope.original_max_position_embeddings);
  const double low_wavelength = original / rope.low_freq_factor;
  const double high_wavelength = original / rope.high_freq_factor;
  const at::Tensor inverse = plain(head_dim, rope.theta);
  const at::Tensor wavelength = at::reciprocal(inverse).mul(2 * std::numbers::pi);
  const at::Tensor scaled = at::where(wavelength.gt(low_wavelength), inverse.div(rope.factor), inverse);
  const at::Tensor smooth = at::reciprocal(wavelength)
                                .mul(original)
                                .sub(rope.low_freq_factor)
                                .div(rope.high_freq_factor - rope.low_freq_factor);
  const at::Tensor blended = at::rsub(smooth, 1).mul(scaled).div(rope.factor).add(smooth.mul(scaled));
  const at::Tensor between = wavelength.ge(high_wavelength).logical_and(wavelength.le(low_wavelength));
  return at::where(between, blended, scaled);
}

// The pairs beyond the share stand still, as if their wavelength had no end.
at::Tensor proportional(int64_t head_dim, const RopeConfig& rope) {
  const int64_t turning = static_cast<int64_t>(rope.turning_share * static_cast<double>(head_dim)) / 2;
  at::Tensor inverse = plain(head_dim, rope.theta);
  inverse.narrow(0, turning, head_dim / 2 - turning).zero_();
  return inverse.div(rope.factor);
}

at::Tensor inverse_frequencies(const ModelConfig& config, const RopeConfig& rope, int64_t head_dim,
                               int64_t sequence_tokens) {
  switch (rope.kind) {
    case RopeKind::standard:
      return plain(head_dim, rope.theta);
    case RopeKind::linear:
      return plain(head_dim, rope.theta).div(rope.factor);
    case RopeKind::dynamic_ntk:
      return dynamic_ntk(rope, head_dim, config.max_position_embeddings, sequence_tokens);
    case RopeKind::yarn:
      return yarn(head_dim, rope);
    case RopeKind::llama3:
      return llama3(head_dim, rope);
    case RopeKind::proportional:
      return proportional(head_dim, rope);
  }
  throw InternalError("unknown rope kind");
}

at::Tensor query_scale(const QueryScaling& scaling, const at::Tensor& positions) {
  const at::Tensor stretches = at::floor_divide(positions, scaling.original_positions).to(at::kFloat);
  return stretches.log1p().mul(scaling.beta).add(1);
}

}  // namespace

int64_t turning_width(const RopeConfig& rope, int64_t head_dim) {
  if (rope.kind == RopeKind::proportional) return head_dim;  // the others stand still
  return static_cast<int64_t>(rope.turning_share * static_cast<double>(head_dim));
}

RotaryFrequencies rotary_frequencies(const ModelConfig& config, const RopeConfig& rope, int64_t head_dim,
                                     int64_t sequence_tokens) {
  const at::NoGradGuard no_grad;
  RotaryFrequencies result{inverse_frequencies(config, rope, turning_width(rope, head_dim), sequence_tokens)};
  if (rope.kind == RopeKind::yarn) result.attention_scaling = yarn_attention_scaling(rope);
  return result;
}

RotaryTable make_rotary_table(const ModelConfig& config, const RopeConfig& rope, int64_t head_dim,
                              int64_t sequence_tokens, const at::Tensor& positions) {
  const at::NoGradGuard no_grad;
  if (!config.rotates) return {};
  const RotaryFrequencies frequencies = rotary_frequencies(config, rope, head_dim, sequence_tokens);
  const at::Tensor inverse = frequencies.inverse.to(positions.device());
  const at::Tensor angles = positions.to(at::kFloat).unsqueeze(1).mul(inverse);
  RotaryTable table{angles.cos().mul(frequencies.attention_scaling),
                    angles.sin().mul(frequencies.attention_scaling)};
  if (rope.query_scaling) table.query_scale = query_scale(*rope.query_scaling, positions);
  return table;
}

}  // namespace trireme
