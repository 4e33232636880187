// One run of the launcher: its code, its time and what it wrote.
#pragma once

#include <chrono>
#include <sstream>
#include <string>

#include "trireme/launch/launch.h"

namespace trireme::testing {

struct LaunchOutcome {
  int code = 0;
  double seconds = 0;
  std::string out;
  std::string err;
};

inline LaunchOutcome launch_and_wait(const LaunchOptions& options) {
  std::ostringstream out, err;
  const auto start = std::chrono::steady_clock::now();
  LaunchOutcome outcome;
  outcome.code = launch(options, out, err);
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  outcome.out = out.str();
  outcome.err = err.str();
  return outcome;
}

}  // namespace trireme::testing
