// The speed of a link (plan/hardware_profile.h), fitted to timed exchanges of several sizes.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

#include "trireme/comm/group.h"
#include "trireme/plan/hardware_profile.h"

namespace trireme {

struct TimedExchange {
  int64_t sent_bytes = 0;  // by each rank, to all others together
  double seconds = 0;      // that a rank waits; mean over ranks and repeats
};

struct FittedLink {
  LinkSpeed speed;
  std::vector<TimedExchange> timed;
};

// Fits latency (not negative) and bandwidth by the least squares of relative errors. Throws InternalError
// unless there are two sizes or more and all times are above zero.
LinkSpeed fit_link_speed(const std::vector<TimedExchange>& timed);

// Times all-to-alls of 4 KiB to 16 MiB a rank, each `repeats` times and after a few milliseconds of work. A
// group of one rank gives no speed and no times. Collective.
FittedLink measure_link(Group& group, at::Device device, int64_t repeats);

}  // namespace trireme
