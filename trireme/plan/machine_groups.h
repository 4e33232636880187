// Groups of consecutive ranks on machines of so many devices each: where a group crosses from one machine to
// another.
#pragma once

#include <algorithm>

namespace trireme {

// The fewest ranks of one group that a machine holds, over all groups of `degree` of the `ranks` ranks;
// `degree` where no group crosses.
inline int fewest_on_a_machine(int ranks, int degree, int machine) {
  int fewest = degree;
  for (int border = machine; border < ranks; border += machine) {
    const int before = border % degree;  // ranks of the group that the border cuts
    if (before > 0) fewest = std::min({fewest, before, degree - before, machine});
  }
  return fewest;
}

inline bool crosses_machines(int ranks, int degree, int machine) {
  return fewest_on_a_machine(ranks, degree, machine) < degree;
}

}  // namespace trireme
