// Rates that are measured in several rounds. The speed of a shared machine wanders for seconds together: what
// is measured in one go meets one speed, and rounds, with all other work between them, meet several. A step,
// which is long, takes their mean.
#pragma once

#include <cstddef>
#include <vector>

#include "trireme/plan/hardware_profile.h"

namespace trireme {

constexpr size_t kRateRounds = 4;  // fewer where the first ones took all of the time

// Of one point in one round, times what it is given there: a size beyond it is left out.
constexpr double kLongestPoint = 3 * kRateRounds;

// The rate of the mean time, at each size and width that every round measured: a size which only fast rounds
// had time for would seem fast.
Rates mean_of_rounds(const std::vector<Rates>& rounds);

}  // namespace trireme
