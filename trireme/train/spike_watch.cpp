#include "trireme/train/spike_watch.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/measure/spread.h"
#include "trireme/train/saved_losses.h"

namespace trireme {

std::string Spike::description(double factor) const {
  std::string text = losses.size() == 1 ? cat("in step ", first_step)
                                        : cat("in steps ", first_step, " to ",
                                              first_step + static_cast<int64_t>(losses.size()) - 1);
  text += cat(" the loss was above ", number_text(factor), " x ", format_fixed(median, 4),
              ", the median of the steps before:");
  constexpr size_t kShown = 5;
  for (size_t i = 0; i < std::min(losses.size(), kShown); ++i) text += " " + format_fixed(losses[i], 4);
  return losses.size() > kShown ? text + " ..." : text;
}

std::optional<Spike> SpikeWatch::add(int64_t step, double loss) {
  std::optional<double> median;  // none: the window is not full
  if (static_cast<int64_t>(window_.size()) >= options_.spike_window)
    median = spread_of({window_.begin(), window_.end()}).median;
  if (!median || loss <= options_.spike_factor * *median) {
    suspected_.clear();
    window_.push_back(loss);
    if (static_cast<int64_t>(window_.size()) > options_.spike_window) window_.pop_front();
    return std::nullopt;
  }
  suspected_.push_back(loss);
  const auto suspected = static_cast<int64_t>(suspected_.size());
  if (suspected < options_.spike_steps) return std::nullopt;
  const Spike spike{step - suspected + 1, *median, suspected_};
  begin_anew();
  return spike;
}

void SpikeWatch::begin_anew() {
  window_.clear();
  suspected_.clear();
}

Json SpikeWatch::state() const {
  return {{"window", window_}, {"suspected", suspected_}};
}

void SpikeWatch::restore(const Json& state, const std::string& origin) {
  const std::vector<double> window = saved_losses(state, "window", kMostSpikeWindow, origin);
  suspected_ = saved_losses(state, "suspected", kMostSpikeWindow, origin);
  const size_t kept = std::min(window.size(), static_cast<size_t>(options_.spike_window));
  window_.assign(window.end() - static_cast<std::ptrdiff_t>(kept), window.end());
}

}  // namespace trireme
