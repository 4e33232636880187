// What an exchange costs by its size: seconds = latency + bytes / bandwidth (Hockney's model), fitted to
// all-to-alls that are timed on the ranks at hand.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

#include "trireme/comm/group.h"

namespace trireme {

struct TimedExchange {
  int64_t sent_bytes = 0;  // by each rank, to all others together
  double seconds = 0;      // of the slowest rank; median over repeats
};

struct LinkRate {
  double latency_seconds = 0;   // of one exchange
  double bytes_per_second = 0;  // that a rank sends
  std::vector<TimedExchange> timed;

  // Of `calls` exchanges that send `sent_bytes` together. 0 where nothing is sent.
  double seconds(int64_t calls, int64_t sent_bytes) const;
};

// The latency, not negative, and bandwidth that make the least squares of relative errors. Throws
// InternalError unless there are two sizes or more, all times above zero.
LinkRate fit_link_rate(std::vector<TimedExchange> timed);

// All-to-alls of 4 KiB to 16 MiB a rank, each `repeats` times. A group of one gives no latency and no times.
// Collective.
LinkRate measure_link_rate(Group& group, at::Device device, int64_t repeats);

}  // namespace trireme
