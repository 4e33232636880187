// A step's seconds by what a person can change.
#pragma once

#include <string>
#include <vector>

#include "trireme/plan/step_time.h"

namespace trireme {

struct CauseSeconds {
  std::string cause;  // "exchanges of Ulysses between machines"
  double seconds = 0;
};
// They sum to the step's.
std::vector<CauseSeconds> seconds_by_cause(const StepTime& time);

}  // namespace trireme
