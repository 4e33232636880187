// The time of a call as the engine makes it: on every rank of the run at once, so that what ranks share
// (caches, memory bandwidth, cores) is shared; the slowest rank's median.
#pragma once

#include <functional>

#include <ATen/ATen.h>

#include "trireme/comm/group.h"

namespace trireme {

class CallTimer {
 public:
  // Repeats for about `seconds`, three times at least where that takes less than ten times as long.
  // `group_device` is the one on which the group's ranks exchange, which work on the host may not be.
  CallTimer(Group& group, at::Device device, at::Device group_device, double seconds)
      : group_(group), device_(device), group_device_(group_device), seconds_(seconds) {}

  at::Device device() const { return device_; }
  double seconds_of_each() const { return seconds_; }

  // Seconds of one call, which waits for the device. Collective: every rank times its own call of the same
  // work.
  double seconds(const std::function<void()>& call) const;
  // Of each of several calls, which take turns.
  std::vector<double> seconds_in_turns(const std::vector<std::function<void()>>& calls) const;

 private:
  Group& group_;
  at::Device device_, group_device_;
  double seconds_;
};

}  // namespace trireme
