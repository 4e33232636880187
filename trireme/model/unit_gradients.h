// A unit's flat gradient, seen as the tensors of its specs, to be added to. Each tensor has its own state
// (sum_state.h): a weight's first product is written over memory that nobody zeroed.
//
//   flat gradient -> add_linear(matrix): W = dy' x, then W += dy' x of the next tile
//                 -> take_sum(matrix): the same by the caller
//                 -> to_add(slot): zeroed at the first call, then added to by the caller
//                 -> finish: zeroes what nothing was added to
//
// Of a unit that stays as it is (frozen): products are left out, and what would be added to its vectors is lost.
// Parameters of it that are trained whole (WholeTensor) are added to as those of another unit.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "trireme/kernels/sum_state.h"
#include "trireme/model/model_layout.h"

namespace trireme {

class UnitGradients {
 public:
  // `state` of all of `flat`. Of an undefined one, the elements of no tensor are zeroed here.
  UnitGradients(const at::Tensor& flat, const UnitSpec& unit, SumState state);
  // Frozen, without adapters.
  UnitGradients(const UnitSpec& unit, at::Device device);
  // Frozen. `adapters`: of the unit's adapters; `whole`: which of these are parameters of the unit.
  UnitGradients(const UnitSpec& unit, at::Device device, UnitGradients adapters,
                std::vector<WholeTensor> whole);
  // Not to be copied: a copy would not know which sums have begun since.
  UnitGradients(const UnitGradients&) = delete;
  UnitGradients& operator=(const UnitGradients&) = delete;
  UnitGradients(UnitGradients&&) = default;
  UnitGradients& operator=(UnitGradients&&) = default;
  ~UnitGradients() = default;

  // By the number of a tensor among the unit's adapters; only where there are some.
  UnitGradients& adapters() { return *adapters_; }
  bool frozen() const { return frozen_; }

  // The sum so far, zero before the first addition. An undefined tensor where the model lacks the parameter.
  at::Tensor& to_add(size_t slot);
  // Matrix [n, k] += dy' x, from dy [T, n] and x [T, k]; bias [n] += column sums of dy, where there is one.
  void add_linear(size_t matrix, std::optional<size_t> bias, const at::Tensor& dy_Tn, const at::Tensor& x_Tk);
  // A matrix for the caller to add to, or to write over where its state was undefined: it is begun from now on.
  std::pair<at::Tensor, SumState> take_sum(size_t slot);
  // Exchanges a tensor with another unit's: a tied matrix is lent to the head, and given back.
  void exchange(size_t slot, UnitGradients& other, size_t other_slot);
  // To be called before anything reads the flat gradient.
  void finish();

 private:
  struct Sum {
    at::Tensor values;
    SumState state = SumState::undefined;
  };
  std::vector<Sum> sums_;
  bool frozen_ = false;
  std::unique_ptr<UnitGradients> adapters_;
  std::vector<WholeTensor> whole_;  // lent by the adapters until finish
};

}  // namespace trireme
