#include "trireme/train/time_left.h"

#include <algorithm>

namespace trireme {

void TimeLeft::add_step(int stage, double flops, double seconds) {
  const auto recent = [](double mean, double value) { return 0.8 * mean + 0.2 * value; };
  double& of_stage = step_flops_.at(static_cast<size_t>(stage));
  of_stage = recent(of_stage, flops);
  const double now = seconds / flops;
  seconds_per_flop_ = seconds_per_flop_ == 0 ? now : recent(seconds_per_flop_, now);
}

double TimeLeft::seconds(const std::vector<ContextStage>& stages, int64_t steps_done) const {
  double flops = 0;
  for (size_t i = 0; i < stages.size(); ++i) {
    const int64_t steps = stages[i].end_step() - std::max(stages[i].first_step, steps_done);
    if (steps > 0) flops += static_cast<double>(steps) * step_flops_.at(i);
  }
  return flops * seconds_per_flop_;
}

}  // namespace trireme
