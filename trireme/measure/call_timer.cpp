#include "trireme/measure/call_timer.h"

#include <utility>
#include <vector>

#include "trireme/base/clock.h"
#include "trireme/comm/agreement.h"
#include "trireme/comm/call_time.h"
#include "trireme/comm/collectives.h"
#include "trireme/measure/spread.h"

namespace trireme {

double CallTimer::seconds(const std::function<void()>& call) const {
  return seconds_in_turns({call}).front();
}

std::vector<double> CallTimer::seconds_in_turns(const std::vector<std::function<void()>>& calls) const {
  constexpr size_t kLeastRepeats = 3;
  constexpr double kTooLong = 10;  // times the seconds: then one repeat is enough
  std::vector<std::vector<double>> times(calls.size());
  barrier(group_);
  for (const auto& call : calls) call();
  wait_for_stream(device_);
  const double start = now_seconds();
  do {
    for (size_t i = 0; i < calls.size(); ++i) {
      const double begin = now_seconds();
      calls[i]();
      wait_for_stream(device_);
      times[i].push_back(now_seconds() - begin);
    }
  } while (now_seconds() - start < (times.back().size() < kLeastRepeats ? kTooLong : 1) * seconds_);
  std::vector<double> medians;
  medians.reserve(times.size());
  for (auto& of_call : times) medians.push_back(spread_of(std::move(of_call)).median);
  return Agreement(group_, group_device_).largest(medians);
}

}  // namespace trireme
