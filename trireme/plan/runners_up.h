// Why another configuration loses: slower, and by what most; or over memory, and by what most.
#pragma once

#include <string>
#include <vector>

#include "trireme/plan/planned.h"

namespace trireme {

struct RunnerUp {
  Planned planned;
  std::string change;  // from the best: "--ulysses 4 --ring 1"
  std::string reason;  // "12 % slower: attention"; "0.8 GiB over on each GPU: activations"
  double slower = 0;   // share of the best's seconds a token; below 0: faster
};

// What `other` is told that `best` is not, as options of train.
std::string changed_options_of(const Planned& best, const Planned& other);
RunnerUp compare_with(const Planned& best, const Planned& other, const HardwareProfile& hardware);

// The best of each mesh beside that of `best`, and `best` with one other option of each kind: those that fit
// by speed, then those that do not by how far they are over.
std::vector<RunnerUp> list_runners_up(const PlanRequest& request, const Planned& best);

}  // namespace trireme
