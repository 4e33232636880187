// A step's seconds by what a person can change.
#pragma once

#include <string>
#include <vector>

#include "trireme/plan/planned.h"

namespace trireme {

struct CauseSeconds {
  std::string cause;  // "exchanges of Ulysses between machines"
  double seconds = 0;
};
// They sum to the step's.
std::vector<CauseSeconds> seconds_by_cause(const Planned& planned, const HardwareProfile& hardware);

}  // namespace trireme
