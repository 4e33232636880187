// The cost of an exchange by its size: seconds = latency + bytes / bandwidth (Hockney's model), fitted to
// timed all-to-alls of the run's ranks.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

#include "trireme/comm/group.h"

namespace trireme {

struct TimedExchange {
  int64_t sent_bytes = 0;  // by each rank, to all others together
  double seconds = 0;      // that a rank waits; mean over ranks and repeats
};

struct LinkRate {
  double latency_seconds = 0;   // of one exchange
  double bytes_per_second = 0;  // sent by one rank
  std::vector<TimedExchange> timed;

  // Seconds of `calls` exchanges that send `sent_bytes` in total; 0 if nothing is sent.
  double seconds(int64_t calls, int64_t sent_bytes) const;
};

// Fits latency (not negative) and bandwidth by the least squares of relative errors. Throws InternalError
// unless there are two sizes or more and all times are above zero.
LinkRate fit_link_rate(std::vector<TimedExchange> timed);

// Times all-to-alls of 4 KiB to 16 MiB a rank, each `repeats` times and after a few milliseconds of work. A
// group of one rank gives no latency and no times. Collective.
LinkRate measure_link_rate(Group& group, at::Device device, int64_t repeats);

}  // namespace trireme
