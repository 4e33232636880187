// How long a run still takes, by the FLOPs of its remaining steps. FLOPs depend on where documents end, so
// each stage begins with an estimate (its first step's), which finished steps replace.
//
//   stage i    F_i = FLOPs of its first step; after each step 4/5 F_i + 1/5 (the step's FLOPs)
//   all        seconds a FLOP, the same mean over steps
//   left       sum over stages of (steps left) F_i, times seconds a FLOP
//
// Arithmetic only.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "trireme/train/context_stages.h"

namespace trireme {

class TimeLeft {
 public:
  // FLOPs of the first step of each stage.
  explicit TimeLeft(std::vector<double> first_step_flops) : step_flops_(std::move(first_step_flops)) {}
  // Records a step of stage `stage` that took `seconds`.
  void add_step(int stage, double flops, double seconds);
  // 0 before the first step.
  double seconds(const std::vector<ContextStage>& stages, int64_t steps_done) const;

 private:
  std::vector<double> step_flops_;  // of each stage
  double seconds_per_flop_ = 0;
};

}  // namespace trireme
