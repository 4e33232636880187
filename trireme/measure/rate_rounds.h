// Rates that are measured in several rounds. The speed of a shared machine wanders for seconds together: what
// is measured in one go meets one speed, and rounds, with all other work between them, meet several. A step,
// which is long, takes their mean.
#pragma once

#include <cstddef>
#include <vector>

#include "trireme/plan/hardware_profile.h"

namespace trireme {

constexpr size_t kRateRounds = 4;  // fewer where the first ones took all of the time

// At each size and width the rate of the mean time, over the rounds that measured it.
Rates mean_of_rounds(const std::vector<Rates>& rounds);

}  // namespace trireme
