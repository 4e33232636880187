// One run of the launcher: its code, its time and what it wrote.
#pragma once

#include <sstream>
#include <string>

#include "trireme/base/clock.h"
#include "trireme/launch/launch.h"

namespace trireme::testing {

// A run that is ended takes less, on a slow machine too; ranks that nobody ends take longer.
constexpr double kNotEnded_seconds = 100;

struct LaunchOutcome {
  int code = 0;
  double seconds = 0;
  std::string out;
  std::string err;
};

inline LaunchOutcome launch_and_wait(const LaunchOptions& options) {
  std::ostringstream out, err;
  const double start = now_seconds();
  LaunchOutcome outcome;
  outcome.code = launch(options, out, err);
  outcome.seconds = now_seconds() - start;
  outcome.out = out.str();
  outcome.err = err.str();
  return outcome;
}

}  // namespace trireme::testing
