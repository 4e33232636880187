// When a run saves: after every so many steps, and when so many minutes have passed since it saved last. And
// what to tell a run whose checkpoints are hours apart: a lost machine costs all steps since the last one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trireme/base/clock.h"

namespace trireme {

class CheckpointInterval {
 public:
  // 0 steps or minutes: not by them. `clock` gives seconds.
  CheckpointInterval(int64_t steps, double minutes, std::function<double()> clock = now_seconds);

  // A checkpoint was saved, or the first step begins.
  void begin() { begin_seconds_ = clock_(); }
  bool is_due_after_step(int64_t step) const { return steps_ > 0 && step % steps_ == 0; }
  bool has_minutes() const { return minutes_ > 0; }
  // By this process's clock: ranks must agree on it.
  bool is_due_by_clock() const { return has_minutes() && clock_() - begin_seconds_ >= 60 * minutes_; }

 private:
  int64_t steps_;
  double minutes_;
  std::function<double()> clock_;
  double begin_seconds_;
};

// Looks at the pace of a stage's first steps, and speaks once.
class RareCheckpoints {
 public:
  // Whether --save_minutes can be advised; else --save_steps is.
  RareCheckpoints(int64_t save_steps, bool may_advise_minutes)
      : save_steps_(save_steps), may_advise_minutes_(may_advise_minutes) {}

  // `saved_anyway`: the step after which the run saves in any case.
  void stage_begins(int64_t saved_anyway) {
    saved_anyway_ = saved_anyway;
    seconds_.clear();
  }
  // Step `step` took so long. The line for a person, after the kSteps-th step of a stage; most often empty.
  std::string add_step(double seconds, int64_t step);

  static constexpr size_t kSteps = 3;  // the first may be slow
  static constexpr double kRareSeconds = 2 * 3600;

 private:
  int64_t save_steps_;
  bool may_advise_minutes_;
  int64_t saved_anyway_ = 0;
  std::vector<double> seconds_;  // of this stage's first steps
  bool told_ = false;
};

}  // namespace trireme
