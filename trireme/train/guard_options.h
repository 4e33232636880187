// What a run does when a step goes wrong: a loss that is not finite, a loss that jumps.
#pragma once

#include <cstdint>

#include "trireme/base/option_list.h"
#include "trireme/engine/on_nonfinite.h"

namespace trireme {

enum class OnSpike {
  off,
  warn,
  stop,
  rollback,  // to the last checkpoint from before the spike, past the data since, at half the learning rate;
             // once
};
constexpr auto enum_names(OnSpike) {
  using enum OnSpike;
  return std::to_array<EnumName<OnSpike>>(
      {{off, "off"}, {warn, "warn"}, {stop, "stop"}, {rollback, "rollback"}});
}

struct GuardOptions {
  OnNonfinite on_nonfinite = OnNonfinite::stop;
  OnSpike on_spike = OnSpike::off;
  double spike_factor = 1.5;  // times the median of the window
  int64_t spike_window = 50;  // steps
  int64_t spike_steps = 3;    // in a row
};

inline constexpr int64_t kMostSpikeWindow = 10'000;

void list_guard_options(OptionList& list, GuardOptions& options);

}  // namespace trireme
