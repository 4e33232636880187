// A head's norm and rotary embedding in fp64, as matrices: the rotation as transformers writes it, x cos +
// rotate_half(x) sin of the first 2r values (apply_rotary_pos_emb), and the norm's Jacobian in full.
#pragma once

#include <cmath>
#include <utility>
#include <vector>

namespace trireme::testing {

class RotaryOracle {
 public:
  using Values = std::vector<double>;

  // cos, sin [r]; norm [D], or empty for none.
  RotaryOracle(Values cos, Values sin, Values norm, double eps)
      : cos_(std::move(cos)), sin_(std::move(sin)), norm_(std::move(norm)), eps_(eps) {}

  Values forward(const Values& x_D) const {
    Values normed(x_D), y(x_D.size(), 0);
    for (size_t i = 0; i < norm_.size(); ++i) normed[i] = x_D[i] * norm_[i] / root(x_D);
    for (size_t i = 0; i < y.size(); ++i)
      for (const Term& term : row(i)) y[i] += term.factor * normed[term.column];
    return y;
  }

  // dy [D] -> dx [D]; added to dnorm [D].
  Values backward(const Values& dy_D, const Values& x_D, Values& dnorm) const {
    const size_t D = x_D.size();
    Values dnormed(D, 0);
    for (size_t i = 0; i < D; ++i)
      for (const Term& term : row(i)) dnormed[term.column] += term.factor * dy_D[i];
    if (norm_.empty()) return dnormed;
    const double rms = root(x_D), cube = rms * rms * rms * static_cast<double>(D);
    Values dx(D, 0);
    for (size_t i = 0; i < D; ++i) {
      dnorm[i] += dnormed[i] * x_D[i] / rms;
      for (size_t k = 0; k < D; ++k)
        dx[k] += dnormed[i] * norm_[i] * ((i == k ? 1 / rms : 0) - x_D[i] * x_D[k] / cube);
    }
    return dx;
  }

 private:
  // Of the rotation's matrix.
  struct Term {
    size_t column;
    double factor;
  };
  std::vector<Term> row(size_t i) const {
    const size_t r = cos_.size();
    if (i >= 2 * r) return {{i, 1}};
    if (i >= r) return {{i, cos_[i - r]}, {i - r, sin_[i - r]}};
    return {{i, cos_[i]}, {i + r, -sin_[i]}};
  }
  double root(const Values& x_D) const {
    double squares = 0;
    for (const double x : x_D) squares += x * x;
    return std::sqrt(squares / static_cast<double>(x_D.size()) + eps_);
  }

  Values cos_, sin_, norm_;
  double eps_;
};

}  // namespace trireme::testing
