// The rate of matrix products of all ranks at once, looked at between other work: a shared machine's speed
// wanders, and what is measured beside it is compared with the speed that it met. `bench step` does so beside
// its steps and `bench hardware` beside its rates, so that the two tell whether the speed has changed.
#pragma once

#include <ATen/ATen.h>

#include "trireme/comm/group.h"

namespace trireme {

class MeanMatmulRate {
 public:
  // `seconds` for each shape, each time. `group` lives longer.
  MeanMatmulRate(Group& group, at::Device device, at::ScalarType dtype, double seconds)
      : group_(group), device_(device), dtype_(dtype), seconds_(seconds) {}

  void measure();                   // collective
  double flops_per_second() const;  // of the mean time, all ranks together; measured once at least

 private:
  Group& group_;
  at::Device device_;
  at::ScalarType dtype_;
  double seconds_;
  double seconds_of_one_ = 0, count_ = 0;  // of one FLOP, added up
};

}  // namespace trireme
