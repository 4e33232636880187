// A unit's flat gradient, seen as the tensors of its specs, to be added to. A tensor that nothing was added
// to yet may hold anything: a weight's first product is written over it, which saves to zero it, and to read
// the zeroes again.
//
//   flat gradient -> add_linear: W = dy' x, then W += dy' x of the next tile
//                 -> [slot]: zeroed once, then added to by who asked
//                 -> finish: what nobody added to is zeroed
#pragma once

#include <optional>
#include <vector>

#include <ATen/ATen.h>

#include "trireme/model/model_layout.h"

namespace trireme {

class UnitGradients {
 public:
  // `begun`: the values are sums already. Otherwise they are undefined; elements between tensors are zeroed
  // here.
  UnitGradients(const at::Tensor& flat, const UnitSpec& unit, bool begun);
  // Not to be copied: a copy would not know what the other has begun.
  UnitGradients(const UnitGradients&) = delete;
  UnitGradients& operator=(const UnitGradients&) = delete;
  UnitGradients(UnitGradients&&) = default;
  UnitGradients& operator=(UnitGradients&&) = default;
  ~UnitGradients() = default;

  // To be added to; undefined where the model has no such parameter.
  at::Tensor& operator[](size_t slot);
  // Matrix [n, k] += dy' x, from dy [T, n] and x [T, k]; bias [n] += column sums of dy, where there is one.
  void add_linear(size_t matrix, std::optional<size_t> bias, const at::Tensor& dy_Tn, const at::Tensor& x_Tk);
  // Exchanges a tensor with another unit's: a tied matrix is lent to the head, and given back.
  void exchange(size_t slot, UnitGradients& other, size_t other_slot);
  void finish();

 private:
  struct Sum {
    at::Tensor values;
    bool begun = false;
  };
  std::vector<Sum> sums_;
};

}  // namespace trireme
