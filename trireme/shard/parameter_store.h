// Where the parameters that compute reads lie. The walk gathers a unit before it uses it and releases it
// after; a replicated store has it at hand.
#pragma once

#include <vector>

#include <ATen/ATen.h>

#include "trireme/shard/flat_unit.h"

namespace trireme {

class ParameterStore {
 public:
  virtual ~ParameterStore() = default;
  // The unit's flat values in the compute dtype, valid until release. Collective once sharded.
  virtual at::Tensor gather(int unit) = 0;
  virtual void release(int unit) = 0;
  // fp32 master values of this rank's part of the unit (here: the whole).
  virtual at::Tensor master(int unit) = 0;
  // The masters changed: what compute reads follows.
  virtual void masters_changed(int unit) = 0;
  virtual int64_t bytes() const = 0;
};

// Every rank holds everything on the device: fp32 masters, and a copy in the compute dtype where that
// differs.
class ReplicatedParameters final : public ParameterStore {
 public:
  ReplicatedParameters(std::vector<at::Tensor> masters, at::ScalarType compute_dtype);
  at::Tensor gather(int unit) override;
  void release(int) override {}
  at::Tensor master(int unit) override;
  void masters_changed(int unit) override;
  int64_t bytes() const override;

 private:
  std::vector<at::Tensor> masters_;
  std::vector<at::Tensor> compute_;  // the same tensors when the dtypes agree
};

}  // namespace trireme
