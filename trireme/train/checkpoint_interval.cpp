#include "trireme/train/checkpoint_interval.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "trireme/base/error.h"

namespace trireme {
namespace {

std::string whole_hours(double seconds) {
  return cat(std::llround(seconds / 3600), " h");
}

// An option that saves about once an hour; where a step takes longer, after each.
std::string hourly_option(double step_seconds, bool by_minutes) {
  const auto steps = static_cast<int64_t>(3600 / step_seconds);
  return cat(
      by_minutes ? std::string("--save_minutes 60") : cat("--save_steps ", std::max<int64_t>(1, steps)),
      " is one ", steps < 1 ? "after each step" : "an hour");
}

}  // namespace

CheckpointInterval::CheckpointInterval(int64_t steps, double minutes, std::function<double()> clock)
    : steps_(steps), minutes_(minutes), clock_(std::move(clock)), begin_seconds_(clock_()) {}

std::string RareCheckpoints::add_step(double seconds, int64_t step) {
  if (told_ || seconds_.size() == kSteps) return {};
  seconds_.push_back(seconds);
  if (seconds_.size() < kSteps) return {};
  const double pace = std::ranges::min(seconds_);
  const int64_t next = save_steps_ > 0 ? (step / save_steps_ + 1) * save_steps_ : saved_anyway_;
  const bool by_steps = next < saved_anyway_;
  const int64_t longest =
      by_steps ? std::max(next - step, std::min(save_steps_, saved_anyway_ - next)) : saved_anyway_ - step;
  const auto duration = [&](int64_t steps) { return pace * static_cast<double>(steps); };
  if (!(duration(longest) > kRareSeconds)) return {};
  told_ = true;
  return cat(by_steps ? cat("a checkpoint every ", whole_hours(duration(save_steps_)))
                      : cat("no checkpoint before step ", saved_anyway_, ", ", whole_hours(duration(longest)),
                            " from now"),
             " at this pace; ", hourly_option(pace, may_advise_minutes_));
}

}  // namespace trireme
