// How long a run has still to go, by the FLOPs of the steps to come: these depend on where documents end, so
// each stage brings an estimate (its first step's), which the steps that have run replace.
//
//   stage i    F_i = FLOPs of its first step, then 4/5 F_i + 1/5 (those of a step) after each
//   all        seconds a FLOP, the same mean over steps
//   left       sum over stages of (steps left) F_i, times that
//
// Arithmetic only.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/train/context_stages.h"

namespace trireme {

class TimeLeft {
 public:
  // FLOPs of the first step of each stage.
  explicit TimeLeft(std::vector<double> first_step_flops);
  // A step of stage `stage` took `seconds`.
  void add_step(int stage, double flops, double seconds);
  // 0 before the first step.
  double seconds(const std::vector<ContextStage>& stages, int64_t steps_done) const;

 private:
  std::vector<double> step_flops_;  // of each stage
  double seconds_per_flop_ = 0;
};

}  // namespace trireme
