// Accumulates the gradients of a step in fp32, unit by unit, and sums them over ranks. The walk opens a unit
// before its backward and closes it after; a sharded store may then reduce and drop it at once.
#pragma once

#include <vector>

#include <ATen/ATen.h>

#include "trireme/comm/group.h"
#include "trireme/shard/flat_unit.h"

namespace trireme {

class GradientStore {
 public:
  virtual ~GradientStore() = default;
  // The unit's flat fp32 gradient, to be added to. Before the first open of a step it is zero.
  virtual at::Tensor open(int unit) = 0;
  virtual void close(int unit) = 0;
  // All micro-batches are done: sums over ranks. Collective.
  virtual void finish() = 0;
  // After finish: the summed gradient of this rank's part of the unit (here: the whole).
  virtual at::Tensor summed(int unit) = 0;
  // Forgets the values, for the next step.
  virtual void clear() = 0;
  virtual int64_t bytes() const = 0;
};

// Every rank holds every gradient; summed over `group` in rank order when the step's backward is done.
class ReplicatedGradients final : public GradientStore {
 public:
  ReplicatedGradients(const std::vector<FlatUnit>& units, Group& group, at::Device device);
  at::Tensor open(int unit) override;
  void close(int) override {}
  void finish() override;
  at::Tensor summed(int unit) override;
  void clear() override;
  int64_t bytes() const override;

 private:
  Group& group_;
  std::vector<at::Tensor> gradients_;
};

}  // namespace trireme
